"""Keyset pages: a page goes on behind the key of the last item of the one before, never by counting rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from service.errors import ErrorKind, ServiceError

T = TypeVar("T")
_LARGEST = 2**63 - 1


def cut(rows: Sequence[T], limit: int, key: Callable[[T], object], *, of: str = "") -> tuple[list[T], str | None]:
    """The page of `limit + 1` fetched rows, and the cursor of the next one; None: that was all.

    `of` names the list in the cursor, so that no other list takes it: where the keys do not tell it, as ids do.
    """
    page = list(rows[:limit])
    mark = f"{of}:" if of else ""
    return page, f"{mark}{key(page[-1])}" if len(rows) > limit else None


def read_key(cursor: str, of: str) -> str:
    """The key in a cursor of this list.

    Raises:
        ServiceError: invalid_request.
    """
    named, _, key = cursor.partition(":")
    if named != of or not key:
        raise bad_cursor()
    return key


def read_number(cursor: str | None, of: str) -> int:
    """The same where it is a number; 0 where there is no cursor.

    Raises:
        ServiceError: invalid_request.
    """
    return 0 if cursor is None else _number(read_key(cursor, of))


def read_pair(cursor: str | None, of: str) -> tuple[int, int] | None:
    """The same where it is a pair such as `2-300`.

    Raises:
        ServiceError: invalid_request.
    """
    if cursor is None:
        return None
    left, _, right = read_key(cursor, of).partition("-")
    return _number(left), _number(right)


def bad_cursor() -> ServiceError:
    """The refusal of a cursor that no page gave."""
    return ServiceError(ErrorKind.INVALID_REQUEST, "cursor must be the next_cursor of a former page of this list.")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _LARGEST:
        raise bad_cursor()
    return int(text)
