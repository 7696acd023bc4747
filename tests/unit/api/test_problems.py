from __future__ import annotations

from api.problems import STATUS, TITLE
from service.errors import ErrorKind


def test_every_kind_of_error_has_a_status_and_a_title() -> None:
    assert set(STATUS) == set(ErrorKind) == set(TITLE)
    assert all(400 <= status < 600 for status in STATUS.values())
