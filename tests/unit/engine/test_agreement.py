from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from groups import record_of

from rubato.engine.agreement import EVERY, GRADIENTS, STATES, Agreement, Audit, Disagreement, Trust, audit_of
from rubato.engine.header import Header, Leaving
from rubato.errors import GenerationLost


class State:
    """A state of which only digests are asked: one number a share."""

    def __init__(self, *shares: int) -> None:
        self.shares = shares

    def digest(self, part: int, parts: int) -> int:
        return sum(self.shares) if parts == 1 else self.shares[part]


def agreement(
    rank: int,
    *,
    world: int = 3,
    step: int = 7,
    reduced: int = 0,
    is_last: bool = False,
    is_due: bool = False,
    **fields: Any,
) -> Agreement:
    trust = Trust(agreed=2, is_due=is_due)
    return Agreement(replace(record_of(world), **fields), rank, step, reduced, is_last, trust)


def outcome(one: Agreement, states: list[State]) -> str:
    """What the rank finds when all say what they have to say."""
    ranks = [replace(one, rank=rank) for rank in range(one.record.world)]
    said = [each.digest([states[each.rank].digest(*part) for part in each.parts]) for each in ranks]
    headers = tuple(Header(1, 1, one.step, 1, 1, Leaving.NO, 0, True, digest, 0, ((0.0, 0.0),)) for digest in said)
    try:
        one.check(headers)
    except Disagreement:
        return "out"
    except GenerationLost:
        return "lost others"
    return "equal" if any(digest is not None for digest in said) else "not compared"


DUE = 3 * EVERY + EVERY // 2
SAME, OTHER = State(1, 2), State(1, 9)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "equal"),  # the start, and after a recovery
        ({"follows": 4}, "not compared"),  # a leave: all hold what they held before
        ({"reduced": 1}, "not compared"),
        ({"reduced": 1, "step": 3 * EVERY}, "equal"),
        ({"reduced": 1, "is_due": True}, "equal"),  # a checkpoint was copied
        ({"world": 1}, "not compared"),
    ],
)
def test_when_states_are_compared(fields: dict[str, Any], found: str) -> None:
    one = agreement(0, **fields)
    assert outcome(one, [SAME] * one.record.world) == found
    is_known = found == "equal" or one.record.world == 1
    assert one.trust == (Trust(one.step) if is_known else Trust(2, one.trust.is_due))


def test_a_minority_is_out_and_the_others_lose_it() -> None:
    found = [outcome(agreement(rank), [SAME, OTHER, SAME]) for rank in range(3)]
    assert found == ["lost others", "out", "lost others"]
    assert [outcome(agreement(rank, world=2), [SAME, OTHER]) for rank in range(2)] == ["out", "out"]


SECOND_OR_LAST = pytest.mark.parametrize("when", [{"reduced": 1}, {"reduced": 0, "is_last": True}])


@SECOND_OR_LAST
@pytest.mark.parametrize("joined", [("2.1",), ("1.1",)])
def test_a_joiners_state_is_compared_with_the_shares_of_all_members(
    joined: tuple[str, ...], when: dict[str, Any]
) -> None:
    rank = int(joined[0][0])
    others = [one for one in range(3) if one != rank]
    joiner, members = (
        [agreement(one, follows=4, joining=joined, **when) for one in ranks] for ranks in ([rank], others)
    )
    assert {outcome(one, [SAME] * 3) for one in (*joiner, *members)} == {"equal"}
    for share in (State(8, 2), State(1, 8)):
        states = [share if one == rank else SAME for one in range(3)]
        assert [outcome(one, states) for one in joiner] == ["out"]
        assert [outcome(one, states) for one in members] == ["lost others"] * 2, "what it computed does not count"


def test_before_it_computes_nothing_is_compared_and_nobody_comes_or_goes() -> None:
    joining = {"follows": 4, "joining": ("2.1",)}
    first, second = agreement(0, **joining, is_due=True), agreement(0, **joining, reduced=1, is_due=True)
    assert outcome(first, [SAME, SAME, OTHER]) == "not compared"
    assert first.awaits_judgement
    assert outcome(second, [SAME] * 3) == "equal"
    assert second.trust == Trust(agreed=2, is_due=True), "shares do not say that all hold the same"
    assert not second.awaits_judgement
    assert not agreement(0, **joining, is_last=True).awaits_judgement


@SECOND_OR_LAST
@pytest.mark.parametrize("holders", [1, 2, 3, 4])
@pytest.mark.parametrize("flipped", range(4))
@pytest.mark.parametrize("share", range(4))
def test_a_members_wrong_bit_is_not_taken_over_by_a_joiner(
    holders: int, flipped: int, share: int, when: dict[str, Any]
) -> None:
    """It is seen where the joiner would get it; where the joiner gets that share of another, it does no harm yet."""
    if flipped >= holders or share >= holders:
        return
    states = [[7] * holders for _ in range(holders)]
    states[flipped][share] = 8
    states.append([states[rank][rank] for rank in range(holders)])  # each share as its holder sent it
    joiner = agreement(holders, world=holders + 1, follows=4, joining=(f"{holders}.1",), **when)
    found = outcome(joiner, [State(*shares) for shares in states])
    is_taken_over, is_said = flipped == share, (flipped + 1) % holders == share
    is_seen = (is_taken_over or is_said) and holders > 1  # one alone is believed
    assert found == ("out" if is_seen else "equal")


# --- the audit --------------------------------------------------------------------------------------------------------


def audited(*said: int | None, rank: int = 0) -> None:
    headers = tuple(Header(1, 1, 7, 1, 1, Leaving.NO, 0, True, None, 0, ((0.0, 0.0),), audit=one) for one in said)
    agreement(rank, world=len(said), reduced=1).check(headers)


def test_whoever_computes_the_same_microbatch_otherwise_leaves() -> None:
    audited(5, 5, 5)
    audited(None, None)
    with pytest.raises(Disagreement, match=GRADIENTS) as told:
        audited(5, 9, 5, rank=1)
    assert told.value.digests == tuple(f"{one:016x}" for one in (5, 9, 5))
    with pytest.raises(GenerationLost, match=r"ranks \[1\]"):
        audited(5, 9, 5, rank=0)


def test_without_a_majority_all_leave() -> None:
    for rank in (0, 1):
        with pytest.raises(Disagreement):
            audited(5, 9, rank=rank)


def test_unequal_states_are_told_before_unequal_gradients() -> None:
    headers = tuple(
        Header(1, 1, 7, 1, 1, Leaving.NO, 0, True, digest, 0, ((0.0, 0.0),), audit=digest) for digest in (1, 2, 1)
    )
    with pytest.raises(Disagreement, match=STATES):
        agreement(1, reduced=1).check(headers)


@pytest.mark.parametrize(
    ("world", "step", "is_repaired", "found"),
    [
        (2, 8, False, Audit.NONE),
        (2, DUE, False, Audit.ALL),
        (2, DUE, True, Audit.NONE),
        (1, DUE, False, Audit.NONE),
    ],
)
def test_when_all_compute_the_same(world: int, step: int, is_repaired: bool, found: Audit) -> None:
    for is_first in (False, True):
        assert audit_of(record_of(world), 0, step, is_first, is_repaired) == found


def test_in_its_first_step_a_joiner_computes_what_another_owns() -> None:
    record = replace(record_of(3), follows=4, joining=("2.1",))
    found = [audit_of(record, rank, DUE, True, True) for rank in range(3)]
    assert found == [Audit.MEETS_JOINERS, Audit.MEETS_JOINERS, Audit.JOINS]
    assert [audit_of(record, rank, 8, False, False) for rank in range(3)] == [Audit.NONE] * 3


def examined(*said: int | None, rank: int) -> None:
    """Rank 2 joins ranks 0 and 1."""
    one = agreement(rank, follows=4, joining=("2.1",))
    headers = tuple(Header(1, 1, 7, 1, 1, Leaving.NO, 0, True, None, 0, ((0.0, 0.0),), audit=audit) for audit in said)
    one.check(headers)


def test_a_joiner_that_computes_otherwise_leaves_and_the_others_go_on() -> None:
    for rank in range(3):
        examined(5, None, 5, rank=rank)
        examined(None, 5, 5, rank=rank)
        examined(5, None, None, rank=rank)  # a stream: the joiner cannot read what another reads
        examined(None, None, 5, rank=rank)
    for rank in (0, 1):
        examined(None, 5, 9, rank=rank)
    with pytest.raises(Disagreement, match=GRADIENTS) as told:
        examined(None, 5, 9, rank=2)
    assert told.value.digests == tuple(f"{one:016x}" for one in (5, 9))


def test_what_differs_is_not_agreed() -> None:
    one = agreement(0, reduced=1, is_due=True)
    assert outcome(one, [SAME, SAME, OTHER]) == "lost others"
    assert one.trust == Trust(agreed=2, is_due=True)
