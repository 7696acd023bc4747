"""The clock, handed in so that tests can step it; decisions get `now` as an argument and never read it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The wall clock, aware."""
    return datetime.now(UTC)


def to_rfc3339(moment: datetime) -> str:
    """Text of fixed width (`2026-01-31T12:00:00.000000Z`), so that it also sorts."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def optional_rfc3339(moment: datetime | None) -> str | None:
    """`to_rfc3339`, keeping None."""
    return None if moment is None else to_rfc3339(moment)


def parse_rfc3339(text: str) -> datetime:
    """An aware moment in UTC.

    Raises:
        ValueError: no RFC 3339 time, one without an offset, or one that lies outside of the calendar in UTC.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset; write UTC as '2026-01-31T12:00:00Z'")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} lies outside of the years 1 to 9999 in UTC") from None


def parse_or(text: str, fallback: datetime) -> datetime:
    """`parse_rfc3339`, or the fallback where it cannot be read: a reporter's bad clock must not block its log."""
    try:
        return parse_rfc3339(text)
    except ValueError:
        return fallback
