"""What the exit code says; the same for every command, so that scripts can rely on it."""

from __future__ import annotations

from enum import IntEnum

from rubato.errors import ApiNotFound, ApiUnauthenticated, RubatoError, ServiceUnreachable
from rubato.wire.status import FINAL


class ExitCode(IntEnum):
    """Exit codes of `rubato`."""

    OK = 0
    ERROR = 1
    USAGE = 2
    AUTH = 4
    UNREACHABLE = 5
    JOB_FAILED = 100
    NOT_FINISHED = 101
    NOT_FOUND = 102
    CANCELLED = 103
    INTERRUPTED = 130  # What a shell reports for SIGINT.


def code_for_error(error: RubatoError) -> ExitCode:
    """The exit code for an error."""
    if isinstance(error, ApiUnauthenticated):
        return ExitCode.AUTH
    if isinstance(error, ApiNotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, ServiceUnreachable):
        return ExitCode.UNREACHABLE
    return ExitCode.ERROR


def code_for_status(status: str, wanted: tuple[str, ...] = ()) -> ExitCode:
    """The exit code of a wait that ended with the job in `status`, where `wanted` was waited for (default: success)."""
    if status in (wanted or ("succeeded",)):
        return ExitCode.OK
    if status == "failed":
        return ExitCode.JOB_FAILED
    if status == "cancelled":
        return ExitCode.CANCELLED
    # It succeeded, but never was what was waited for: that will not come any more.
    return ExitCode.ERROR if status in FINAL else ExitCode.NOT_FINISHED
