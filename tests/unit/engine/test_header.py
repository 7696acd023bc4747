from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.header import Decision, Header, Leaving, decide, header_bytes, minority
from rubato.errors import ProtocolError

words = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False)
headers = st.builds(
    Header,
    attempt=words,
    generation=words,
    step=words,
    formed=words,
    ready=words,
    leaving=st.sampled_from(Leaving),
    checkpoint=words,
    is_finite=st.booleans(),
    digest=st.none() | words,
    compute_ns=words,
    slots=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40).map(tuple),
)


def header(slots: list[tuple[float, float]] | None = None, **fields: Any) -> Header:
    plain = Header(
        attempt=1,
        generation=4,
        step=9,
        formed=4,
        ready=4,
        leaving=Leaving.NO,
        checkpoint=0,
        is_finite=True,
        digest=None,
        compute_ns=5,
        slots=tuple(slots or [(0.0, 0.0)]),
    )
    return replace(plain, **fields)


@given(headers)
def test_a_header_survives_the_wire(one: Header) -> None:
    data = one.pack()
    assert len(data) == header_bytes(len(one.slots))
    assert len(data) % 64 == 0
    assert Header.unpack(data) == one


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        one = Header.unpack(data)
    except ProtocolError:
        return
    assert header_bytes(len(one.slots)) == len(data)


def test_a_header_cut_short_is_refused() -> None:
    data = header([(1.0, 2.0)] * 20).pack()
    with pytest.raises(ProtocolError, match="cannot have 64 bytes"):
        Header.unpack(data[:64])
    with pytest.raises(ProtocolError, match=f"20 microbatches in {len(data) - 64} bytes"):
        Header.unpack(data[:-64])


@given(st.integers(1, 6), st.data())
def test_all_switch_or_nobody(world: int, data: st.DataObject) -> None:
    ready = [data.draw(st.integers(4, 6)) for _ in range(world)]
    decision = decide([header(ready=one) for one in ready])
    assert decision.switch_to == (ready[0] if set(ready) in ({5}, {6}) else 0)


def test_a_generation_that_only_some_have_formed_is_passed_over() -> None:
    assert decide([header(ready=5), header(ready=6), header(ready=6)]).switch_to == 0
    assert decide([header(ready=6)] * 3).switch_to == 6
    assert decide([header(ready=4)] * 3).switch_to == 0


def test_joiners_are_fed_when_all_have_formed_and_before_all_are_ready() -> None:
    assert decide([header(formed=5), header(formed=4)]).feed == 0
    assert decide([header(formed=5)] * 3) == replace(decide([header()]), feed=5)
    assert decide([header(formed=5, ready=5), header(formed=5)]).switch_to == 0
    assert decide([header(formed=5, ready=5)] * 2).switch_to == 5


def test_what_one_says_holds_for_all() -> None:
    said = [header(leaving=Leaving.PAUSE), header(checkpoint=3), header(checkpoint=7, is_finite=False)]
    decision = decide(said)
    assert decision == Decision(0, 0, Leaving.PAUSE, 7, is_finite=False, loss=0.0, weight=0.0)
    assert decide([*said, header(leaving=Leaving.STOP)]).leaving is Leaving.STOP
    assert decide([header(), header()]) == Decision(0, 0, Leaving.NO, 0, is_finite=True, loss=0.0, weight=0.0)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.5, 64)), min_size=1, max_size=24), st.data())
def test_the_loss_does_not_depend_on_who_computed_what(slots: list[tuple[float, float]], data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 5))
    owners = [data.draw(st.integers(0, world - 1)) for _ in slots]
    said = [
        header([slot if owner == rank else (0.0, 0.0) for slot, owner in zip(slots, owners, strict=True)])
        for rank in range(world)
    ]
    decision = decide(said)
    assert decision == decide([header(slots)])
    assert decision.weight == pytest.approx(sum(weight for _, weight in slots))
    assert decision.loss == pytest.approx(sum(loss * weight for loss, weight in slots) / decision.weight)


def test_a_doubled_microbatch_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="computed by 2 workers"):
        decide([header([(1.0, 4.0), (0.0, 0.0)]), header([(1.0, 4.0), (2.0, 4.0)])])


@pytest.mark.parametrize("field", ["attempt", "generation", "step"])
def test_headers_of_another_time_are_an_error(field: str) -> None:
    with pytest.raises(ProtocolError, match="different steps"):
        decide([header(), header(**{field: 2})])


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ([7], set()),
        ([7, 7, 7], set()),
        ([None, None], set()),
        ([7, None], set()),
        ([7, 8, 7], {1}),
        ([8, 7, 7, None], {0}),
        ([7, 7, 7, 8, 9], {3, 4}),
        ([7, 8], {0, 1}),
        ([7, 7, 8, 8], {0, 1, 2, 3}),
        ([7, 8, 9], {0, 1, 2}),
        ([7, 8, None], {0, 1, 2}),
    ],
)
def test_the_minority(digests: list[int | None], odd: set[int]) -> None:
    assert minority(digests) == odd
