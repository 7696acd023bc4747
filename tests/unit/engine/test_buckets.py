from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.buckets import ALIGN, cut


@st.composite
def vectors(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    """Starts of parameters, end of the gradients, length of the vector, and the most of a bucket."""
    sizes = [ALIGN * size for size in draw(st.lists(st.integers(0, 20), min_size=1, max_size=12))]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return starts, sum(sizes), sum(sizes) + ALIGN * draw(st.integers(1, 4)), draw(st.integers(1, 400))


@given(vectors())
def test_the_buckets_are_the_whole_vector_from_its_end_and_its_tail_comes_last(
    vector: tuple[list[int], int, int, int],
) -> None:
    starts, end, length, most = vector
    *gradients, tail = cut(starts, end, length, most)
    assert (tail.begin, tail.end, tail.parameters) == (end, length, range(0))
    edges = [end, *(bucket.begin for bucket in gradients)]
    assert [bucket.end for bucket in gradients] == edges[:-1]
    assert edges[-1] == 0


@given(vectors())
def test_a_bucket_waits_for_exactly_the_parameters_that_lie_in_it(vector: tuple[list[int], int, int, int]) -> None:
    starts, end, length, most = vector
    ends = [*starts[1:], end]
    for bucket in cut(starts, end, length, most)[:-1]:
        lie_there = [
            index
            for index, (begin, stop) in enumerate(zip(starts, ends, strict=True))
            if begin < stop and begin < bucket.end and stop > bucket.begin
        ]
        assert set(lie_there) <= set(bucket.parameters)
        assert all(index in lie_there or starts[index] == ends[index] for index in bucket.parameters)


@given(vectors())
def test_a_bucket_has_no_more_than_it_may(vector: tuple[list[int], int, int, int]) -> None:
    starts, end, length, most = vector
    for bucket in cut(starts, end, length, most)[:-1]:
        assert 0 < bucket.end - bucket.begin <= max(ALIGN, most)
        assert bucket.begin % ALIGN == bucket.end % ALIGN == 0
