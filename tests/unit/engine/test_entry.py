from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.entry import BEFORE_ALL, Key, Standing, decide_entry, standing_bytes
from rubato.engine.tree import balanced_owners
from rubato.errors import ProtocolError
from rubato.wire.worker import GenerationRecord, Member, Origin

V = 8


def record(world: int, num_microbatches: int = V) -> GenerationRecord:
    members = tuple(Member(f"w{rank}", f"{rank}.1") for rank in range(world))
    owners = balanced_owners(num_microbatches, world)
    return GenerationRecord(2, 5, members, owners, "127.0.0.1:1", Origin("members"), "recovery", 0)


def stands(last: Key = (6, 0), held: set[int] | None = None, **fields: Any) -> Standing:
    """A member that has the state; the step it works on follows from what it completed."""
    plain: dict[str, Any] = {"attempt": 2, "generation": 5, "has_state": True, "result_bytes": 100, "working_on": -1}
    plain["working_on"] = last[0] + 1 if held else -1
    return Standing(last=last, held=frozenset(held or ()), **(plain | fields))


def blank() -> Standing:
    return stands(BEFORE_ALL, has_state=False, result_bytes=0)


@given(
    st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.frozensets(st.integers(0, count - 1)))),
    st.tuples(st.integers(-1, 2**62), st.integers(0, 2**62)),
    st.booleans(),
)
def test_a_standing_survives_the_wire(held: tuple[int, frozenset[int]], last: Key, has_state: bool) -> None:
    one = Standing(3, 4, has_state, last, 17, last[0] + 1, held[1])
    data = one.pack(held[0])
    assert len(data) == standing_bytes(held[0])
    assert len(data) % 8 == 0
    assert Standing.unpack(data) == one


def test_founding() -> None:
    plan = decide_entry(record(3), [blank(), blank(), blank()])
    assert (plan.holders, plan.behind, plan.owners_of_step) == ((), (), None)
    assert plan.last == BEFORE_ALL


def test_catching_up() -> None:
    members = [stands((5, 0)), stands((6, 0), result_bytes=0), stands((6, 0)), stands((5, 0))]
    plan = decide_entry(record(4), members)
    assert plan.behind == (0, 3)
    assert plan.source == 2
    assert plan.last == (6, 0)
    assert plan.owners_of_step is None


def test_those_behind_do_not_keep_microbatches_of_the_step_they_missed() -> None:
    plan = decide_entry(record(2), [stands((5, 0), held={0, 1}), stands((6, 0), held={5})])
    assert plan.behind == (0,)
    assert plan.owners_of_step is not None
    step, owners = plan.owners_of_step
    assert step == 7
    assert owners[5] == 1
    assert plan.orphans == tuple(leaf for leaf in range(V) if leaf != 5)


@pytest.mark.parametrize(
    ("ahead", "before"), [((6, 0), (5, 0)), ((6, 0), (5, 3)), ((6, 1), (6, 0)), ((6, 3), (6, 2)), ((0, 0), (-1, 0))]
)
def test_one_exchange_apart_is_mended(ahead: Key, before: Key) -> None:
    plan = decide_entry(record(2), [stands(before), stands(ahead)])
    assert (plan.behind, plan.source, plan.last) == ((0,), 1, ahead)


@pytest.mark.parametrize(("ahead", "before"), [((6, 0), (4, 0)), ((6, 1), (5, 0)), ((6, 2), (6, 0))])
def test_more_than_one_exchange_apart_is_an_error(ahead: Key, before: Key) -> None:
    with pytest.raises(ProtocolError, match="missed more than"):
        decide_entry(record(2), [stands(before), stands(ahead)])


def test_standings_that_cannot_be() -> None:
    with pytest.raises(ProtocolError, match="generation 4 met one of 5"):
        decide_entry(record(2), [stands(), stands(generation=4)])
    with pytest.raises(ProtocolError, match="met one of"):
        decide_entry(record(2), [stands(), stands(attempt=1)])
    with pytest.raises(ProtocolError, match="nobody has the result"):
        decide_entry(record(2), [stands((5, 0)), stands((6, 0), result_bytes=0)])
    with pytest.raises(ProtocolError, match="a worker without the state"):
        decide_entry(record(2), [stands(), blank()])
    with pytest.raises(ProtocolError, match="microbatch 3 of step 7 is held by two"):
        decide_entry(record(2), [stands(held={1, 3}), stands(held={3})])


@given(st.integers(1, 6), st.integers(1, 40), st.data())
def test_an_interrupted_step_is_shared_out_exactly_once(world: int, count: int, data: st.DataObject) -> None:
    holder = data.draw(st.lists(st.none() | st.integers(0, world - 1), min_size=count, max_size=count))
    held = [{leaf for leaf, owner in enumerate(holder) if owner == rank} for rank in range(world)]
    plan = decide_entry(record(world, count), [stands(held=one) for one in held])
    if not any(held):
        assert plan.owners_of_step is None  # the step begins anew, as the record says
        return
    assert plan.owners_of_step is not None
    step, owners = plan.owners_of_step
    assert step == 7
    assert len(owners) == count
    assert all(owner in range(world) for owner in owners)
    assert all(owners[leaf] == owner for leaf, owner in enumerate(holder) if owner is not None)
    orphans = [owners[leaf] for leaf, owner in enumerate(holder) if owner is None]
    assert plan.orphans == tuple(leaf for leaf, owner in enumerate(holder) if owner is None)
    loads = [orphans.count(rank) for rank in range(world)]
    assert max(loads) - min(loads) <= 1
