"""Buckets of steps: which are finished, and what they keep."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from service.rollups import BASE, Stretch, _gaps, _runs, finished_buckets, merge, of_rows

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SIZES = st.lists(st.integers(1, 3 * BASE), min_size=1, max_size=30)


def row(step: int, value: float | None) -> Stretch:
    return of_rows([(step, NOON, {"loss": value})], 1)[0]


@given(first=st.integers(0, 3 * BASE), sizes=SIZES)
def test_however_rows_are_cut_into_batches_each_bucket_is_finished(first: int, sizes: list[int]) -> None:
    finished: set[int] = set()
    step = first
    for size in sizes:
        finished |= set(finished_buckets(range(step, step + size)))
        step += size
    whole = set(range(first // BASE, step // BASE))
    assert whole <= finished
    assert all((bucket + 1) * BASE <= step for bucket in finished), "none whose last step has not come"


@given(
    values=st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=200),
    steps=st.integers(1, 50),
)
def test_a_bucket_keeps_the_extremes_and_the_first_of_equal_ones(values: list[float | None], steps: int) -> None:
    for stretch in merge([row(step, value) for step, value in enumerate(values)], steps):
        part = [
            (value, step)
            for step, value in enumerate(values)
            if value is not None and step // steps == stretch.first // steps
        ]
        if not part:
            assert stretch.low == stretch.high == {}
            continue
        assert stretch.low["loss"][:2] == min(part)
        assert stretch.high["loss"][:2] == max(part, key=lambda pair: (pair[0], -pair[1]))


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_numbers_again(numbers: set[int]) -> None:
    runs = list(_runs(sorted(numbers)))
    assert [number for run in runs for number in run] == sorted(numbers)
    assert all(left.stop < right.start for left, right in pairwise(runs))


@given(st.sets(st.integers(3, 60)))
def test_gaps_are_all_other_numbers(numbers: set[int]) -> None:
    gaps = list(_gaps(3, 61, sorted(numbers)))
    assert [number for gap in gaps for number in gap] == [number for number in range(3, 61) if number not in numbers]
    assert all(left.stop < right.start for left, right in pairwise(gaps))


@given(
    values=st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(-3, 3)), max_size=100),
    first=st.integers(0, 200),
    steps=st.integers(1, 50),
)
def test_rows_are_gathered_as_their_single_stretches_would_be(
    values: list[dict[str, float | None]], first: int, steps: int
) -> None:
    rows = [(first + index, NOON, row) for index, row in enumerate(values)]
    assert of_rows(rows, steps) == merge(of_rows(rows, 1), steps)
