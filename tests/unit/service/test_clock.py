from __future__ import annotations

from datetime import UTC, datetime

import pytest

from service.clock import parse_or, parse_rfc3339, to_rfc3339

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def test_times_are_text_of_fixed_width_in_utc() -> None:
    assert to_rfc3339(NOW) == "2026-01-31T12:00:00.000000Z"
    assert parse_rfc3339("2026-01-31T14:00:00+02:00") == NOW
    assert parse_rfc3339(to_rfc3339(NOW)) == NOW


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-01-31T12:00:00",
        "2026-13-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
    ],
)
def test_a_reporters_bad_clock_does_not_block_its_log(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are the standard library's
        parse_rfc3339(text)
    assert parse_or(text, NOW) is NOW
