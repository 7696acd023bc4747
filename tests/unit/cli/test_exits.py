from __future__ import annotations

import pytest

from rubato.cli.exits import ExitCode, code_for_error, code_for_status
from rubato.errors import (
    ApiError,
    ApiForbidden,
    ApiNotFound,
    ApiUnauthenticated,
    RubatoError,
    ServiceUnreachable,
    UserError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiUnauthenticated("x"), 4),
        (ApiForbidden("x"), 4),
        (ServiceUnreachable("x"), 5),
        (ApiNotFound("x"), 102),
        (ApiError("x"), 1),
        (UserError("x"), 1),
        (RubatoError("x"), 1),
    ],
)
def test_errors(error: RubatoError, code: int) -> None:
    assert code_for_error(error) == code


@pytest.mark.parametrize(
    ("status", "wanted", "code"),
    [
        ("succeeded", (), ExitCode.OK),
        ("failed", (), ExitCode.JOB_FAILED),
        ("cancelled", (), ExitCode.CANCELLED),
        ("running", (), ExitCode.NOT_FINISHED),
        ("running", ("running",), ExitCode.OK),
        ("failed", ("failed",), ExitCode.OK),
        ("failed", ("running",), ExitCode.JOB_FAILED),
        ("succeeded", ("paused",), ExitCode.ERROR),
        ("queued", ("paused",), ExitCode.NOT_FINISHED),
    ],
)
def test_ends_of_a_wait(status: str, wanted: tuple[str, ...], code: ExitCode) -> None:
    assert code_for_status(status, wanted) == code
