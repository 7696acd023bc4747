"""Buckets of steps: which are finished, and what they keep."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.rollups import BASE, FACTOR, Stretch, _decode, _encode, _gaps, _runs, finished_buckets, merge, of_rows

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


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200),
    small=st.integers(1, 20),
    large=st.integers(1, 10),
)
def test_a_mean_is_of_all_values_however_often_they_were_merged(values: list[float], small: int, large: int) -> None:
    rows = [(step, NOON, {"loss": value}) for step, value in enumerate(values)]
    for stretch in merge(of_rows(rows, small), small * large):
        part = values[stretch.first : stretch.first + small * large]
        assert stretch.mean("loss") == pytest.approx(sum(part) / len(part), abs=1e-6)
        assert min(part) <= stretch.mean("loss") <= max(part)


def test_a_bucket_is_read_as_it_was_written() -> None:
    [stretch] = of_rows([(step, NOON, {"loss": float(step % 7), "lr": 0.1}) for step in range(BASE, 2 * BASE)], BASE)
    assert _decode(1, 0, json.loads(json.dumps(_encode(stretch)))) == stretch


def test_a_sum_that_no_float_holds_is_not_written_and_its_mean_lies_between_the_extremes() -> None:
    for sign in (1, -1):
        values = [sign * 1.5e308, sign * 1.6e308, sign * 1.7e308]
        [stretch] = of_rows([(step, NOON, {"loss": value}) for step, value in enumerate(values)], BASE)
        json.dumps(_encode(stretch), allow_nan=False)
        read = _decode(0, 0, _encode(stretch))
        for one in (stretch, read, merge([stretch, read], BASE)[0]):
            assert min(values) <= one.mean("loss") <= max(values)
    both = merge([Stretch(0, *({"loss": one} for one in sides)) for sides in _infinite_sums()], BASE)[0]
    assert math.isfinite(both.mean("loss"))


def _infinite_sums() -> list[tuple[tuple[float, ...], ...]]:
    return [((sign * 1e308, 0, 0.0), (sign * 1e308, 0, 0.0), (sign * math.inf, 4)) for sign in (1, -1)]


def test_of_a_bucket_from_before_totals_were_kept_the_middle_counts_as_its_mean() -> None:
    old = _decode(2, 1, {"loss": [[1.0, 600, 0.5], [4.0, 601, 0.6]]})
    assert (old.first, old.low["loss"], old.high["loss"]) == (2 * BASE * FACTOR, (1.0, 600, 0.5), (4.0, 601, 0.6))
    assert old.mean("loss") == 2.5
    [row] = of_rows([(3 * BASE * FACTOR - 1, NOON, {"loss": 50.0})], 1)
    [both] = merge([old, row], BASE * FACTOR)
    assert both.mean("loss") == pytest.approx((2.5 * BASE * FACTOR + 50) / (BASE * FACTOR + 1)), (
        "it stands for all its steps"
    )
