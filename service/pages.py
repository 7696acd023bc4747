"""Keyset pages: a page goes on behind the key of the last item of the one before, never by counting rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from service.errors import ErrorKind, ServiceError

T = TypeVar("T")
_LARGEST = 2**63 - 1


def cut(rows: Sequence[T], limit: int, key: Callable[[T], object]) -> tuple[list[T], str | None]:
    """The page of `limit + 1` fetched rows, and the cursor of the next one; None: that was all."""
    page = list(rows[:limit])
    return page, str(key(page[-1])) if len(rows) > limit else None


def read_number(cursor: str | None) -> int:
    """A cursor that is a number; 0 where there is none.

    Raises:
        ServiceError: invalid_request.
    """
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 19 or int(cursor) > _LARGEST:
        raise bad_cursor()
    return int(cursor)


def read_pair(cursor: str | None) -> tuple[int, int] | None:
    """A cursor such as `2-300`.

    Raises:
        ServiceError: invalid_request.
    """
    if cursor is None:
        return None
    left, dash, right = cursor.partition("-")
    if not dash or not left or not right:
        raise bad_cursor()
    return read_number(left), read_number(right)


def bad_cursor() -> ServiceError:
    """The refusal of a cursor that no page gave."""
    return ServiceError(ErrorKind.INVALID_REQUEST, "cursor must be the next_cursor of a former page.")
