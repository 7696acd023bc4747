from __future__ import annotations

from datetime import UTC, datetime, timedelta

from service.ids import is_id, new_id

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def test_ids_sort_by_time_and_within_one_millisecond() -> None:
    made = [new_id("job", NOW) for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000
    assert made[-1] < new_id("job", NOW + timedelta(milliseconds=1))


def test_ids_are_recognised() -> None:
    made = new_id("job", NOW)
    assert is_id(made, "job")
    assert not is_id(made, "ckpt")
    assert not is_id("job_digits", "job")
    assert not is_id(made + "\n", "job")
    assert not is_id(made.upper(), "job")
