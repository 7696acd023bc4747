from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rubato.cli.render import format_age, format_number, format_pause

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("since", "age"),
    [
        (None, "-"),
        ("2026-01-02T11:59:30Z", "30s"),
        ("2026-01-02T12:00:05Z", "0s"),
        ("2026-01-02T11:00:01Z", "59m"),
        ("2026-01-02T12:00:00+02:00", "2h"),
        ("2025-12-30T12:00:00Z", "3d"),
    ],
)
def test_ages(since: str | None, age: str) -> None:
    assert format_age(since, NOW) == age


def test_pauses_have_a_unit_that_fits() -> None:
    assert [format_pause(seconds) for seconds in (0.0, 0.0414, 0.9994, 12.34)] == ["0 ms", "41 ms", "999 ms", "12.3 s"]


def test_numbers_have_four_digits() -> None:
    assert [format_number(value) for value in (None, 0.123456, 12345.6, 7, "x")] == [
        "-",
        "0.1235",
        "1.235e+04",
        "7",
        "x",
    ]
