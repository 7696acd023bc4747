from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.speed_limits import MAX_BYTES, MAX_LOG_ELEMENTS, MAX_PAINT_MS, MAX_TASK_MS, Seen, judge

GOOD = Seen(
    "logs", 120.0, (16.0, 17.0, 30.0), (60.0, 80.0), 1_500, most_elements=MAX_LOG_ELEMENTS, loaded_bytes=MAX_BYTES - 1
)


def test_what_keeps_within_all_limits_is_not_complained_of() -> None:
    assert judge(GOOD) == []
    assert judge(replace(GOOD, paint_ms=MAX_PAINT_MS, tasks_ms=(), loaded_bytes=None)) == []
    assert judge(replace(GOOD, most_elements=None, elements=50_000)) == []


@pytest.mark.parametrize(
    ("change", "said", "is_time"),
    [
        ({"paint_ms": None}, "logs: no first paint was seen", True),
        ({"paint_ms": MAX_PAINT_MS + 1}, "first paint after 1001 ms", True),
        ({"tasks_ms": (60.0, MAX_TASK_MS + 1, 70.0)}, "a task took 501 ms", True),
        ({"elements": MAX_LOG_ELEMENTS + 1}, "1501 elements", False),
        ({"loaded_bytes": MAX_BYTES}, "150000 bytes are loaded", False),
        ({"loaded_bytes": 0}, "0 bytes are loaded", False),
    ],
)
def test_each_limit_is_told_and_times_only_where_they_count(change: dict[str, Any], said: str, is_time: bool) -> None:
    bad = replace(GOOD, **change)
    (complaint,) = judge(bad)
    assert said in complaint
    assert judge(bad, with_times=False) == ([] if is_time else [complaint])


def test_a_view_is_told_in_a_line() -> None:
    assert str(GOOD) == (
        "logs: first paint 120 ms; frames 17 ms, 95 of 100 within 30 ms, longest 30 ms; 2 long tasks, longest 80 ms; "
        "1500 elements; 150.0 kB loaded"
    )
    assert "first paint none" in str(replace(GOOD, paint_ms=None))
