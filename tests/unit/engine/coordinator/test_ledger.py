from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.coordinator.intervals import SHORTEST_S, best_interval_s
from rubato.engine.coordinator.ledger import MOST_FAILED, CheckpointLedger, Reassigned
from rubato.engine.coordinator.orders import Terms, Wish
from rubato.engine.coordinator.state import JobState
from rubato.errors import SpecError
from rubato.wire import worker as wire
from rubato.wire.cluster import Distrust
from rubato.wire.spec import parse_spec

FOLDER = "1-10"


def ledger(**changes: Any) -> CheckpointLedger:
    return CheckpointLedger(**{"interval_s": 30.0, "request": 0, **changes})


def part(index: int, count: int, by: int | None = None, **terms: float) -> wire.StripeWritten:
    writer = f"1.{index if by is None else by}"
    members = tuple(f"1.{rank}" for rank in range(count))
    return wire.StripeWritten(writer, 2, 10, FOLDER, index, count, ({"name": f"s{index}"},), terms, members)


def living(*ranks: int) -> set[str]:
    return {f"1.{rank}" for rank in ranks}


def test_a_dead_writers_part_is_given_to_the_next_rank() -> None:
    book = ledger()
    assert book.on_written(part(0, 3), 0.0) is None
    assert book.on_lost(living(0, 1)) == [Reassigned("1.0", 2, FOLDER, 2)]
    assert book.on_lost(living(0, 1)) == [], "it is asked once"
    assert book.on_written(part(1, 3), 0.0) is None
    whole = book.on_written(part(2, 3, by=0), 0.0)
    assert whole is not None
    assert [file["name"] for file in whole.files] == ["s0", "s1", "s2"]


def test_who_is_dead_before_the_first_part_arrives_is_found_then() -> None:
    book = ledger()
    assert book.on_lost(living(1)) == []
    book.on_written(part(1, 2), 0.0)
    assert book.on_lost(living(1)) == [Reassigned("1.1", 2, FOLDER, 0)]


def test_owner_and_keeper_gone_is_the_end_of_it() -> None:
    book = ledger()
    book.want(9)
    book.on_written(part(0, 4), 0.0)
    assert book.next_request(0.0, 3, is_settled=True) == 1
    assert book.on_lost(living(0, 3)) == []
    assert book.lost_step == 10
    assert book.next_request(0.0, 3, is_settled=False) == 2, "what the user wants"
    assert book.on_lost(living(0, 3)) == []
    assert book.next_request(0.0, 3, is_settled=True) is None, "lost once, asked for once"
    for index in (3, 1, 2):
        assert book.on_written(part(index, 4), 0.0) is None
    assert book.is_wanted, "what the user asked for is still to come"


def test_a_cut_that_a_newer_generation_replaces_only_in_part_is_made_again() -> None:
    """Its first writer is beyond that boundary, and saves nothing of it in the next generation."""
    book = ledger()
    book.on_written(part(0, 3), 0.0)
    newer = replace(part(1, 2), generation=3)
    assert book.on_written(newer, 1.0) is None
    assert book.on_lost(living(0, 1)) == []
    assert book.lost_step == 10
    assert book.next_request(1.0, 3, is_settled=True) == 1
    assert book.on_written(replace(newer, index=0, incarnation="1.0"), 2.0) is not None
    book.on_committed(10)
    assert book.lost_step == -1, "it came about all the same"
    assert book.next_request(2.0, 4, is_settled=True) is None


def test_a_cut_that_is_replaced_as_a_whole_is_not_made_again() -> None:
    book = ledger()
    book.on_written(part(0, 3), 0.0)
    assert book.on_written(replace(part(0, 1), generation=3), 1.0) is not None
    assert book.next_request(1.0, 3, is_settled=True) is None


def test_what_was_lost_is_asked_for_in_each_generation_until_it_is_there() -> None:
    book = ledger(interval_s=None)
    book.on_written(part(0, 4), 0.0)
    book.on_lost(living(0, 3))
    assert book.next_request(0.0, 3, is_settled=False) is None, "nobody is there yet who could"
    assert [book.next_request(0.0, number, is_settled=True) for number in (3, 3, 4)] == [1, None, 2]
    book.on_answered(9)
    assert book.next_request(0.0, 5, is_settled=True) == 3, "that was an older one"
    book.on_committed(10)
    assert book.next_request(0.0, 6, is_settled=True) is None


def test_the_heir_may_die_too() -> None:
    book = ledger()
    book.on_written(part(0, 3), 0.0)
    assert book.on_lost(living(0, 2)) == [Reassigned("1.2", 2, FOLDER, 1)]
    assert book.on_lost(living(0)) == []
    assert book.lost_step == 10


@given(st.integers(1, 6), st.data())
def test_any_one_loss_leaves_the_checkpoint_to_be_finished(world: int, data: st.DataObject) -> None:
    book = ledger()
    written = data.draw(st.sets(st.integers(0, world - 1), max_size=world - 1)) if world > 1 else set()
    dead = data.draw(st.integers(0, world - 1))
    for index in written:
        book.on_written(part(index, world), 0.0)
    alive = living(*(rank for rank in range(world) if rank != dead))
    given_to = {order.index: order.incarnation for order in book.on_lost(alive)}
    finished = None
    for index in range(world):
        if index in written:
            continue
        if index == dead:
            if not written:  # nobody knows of this checkpoint yet
                continue
            assert given_to[index] in alive
        finished = book.on_written(part(index, world), 0.0)
        given_to |= {order.index: order.incarnation for order in book.on_lost(alive)}
    if not written and world > 1:
        assert given_to[dead] in alive
        finished = book.on_written(part(dead, world), 0.0)
    assert world == 1 or finished is not None


def test_a_late_failure_of_an_older_generation_takes_nothing_from_a_newer_one() -> None:
    book = ledger()
    book.want(10)
    assert book.on_written(replace(part(0, 2), generation=3), 0.0) is None
    late = wire.StripeFailed("1.2", FOLDER, 10, "the disk was full", 2)
    assert not book.on_failed(late, 3)
    assert book.is_wanted
    assert book.on_written(replace(part(1, 2), generation=3), 0.0) is not None
    assert not book.on_failed(late, 3), "its manifest is being written"
    book.on_committed(10)
    assert not book.on_failed(late, 3)


def test_a_failure_of_an_older_generation_is_no_answer_to_what_is_wanted() -> None:
    book = ledger()
    book.want(10)
    assert not book.on_failed(wire.StripeFailed("1.2", FOLDER, 10, "the disk was full", 2), 3)
    assert book.is_wanted
    assert book.on_written(replace(part(0, 1), generation=3), 0.0) is not None


@pytest.mark.parametrize("is_newer_first", [True, False])
def test_parts_of_two_generations_are_asked_for_again(is_newer_first: bool) -> None:
    """Who wrote the older one is beyond that boundary, and was maybe not asked by a controller that is gone."""
    book = ledger()
    told = [part(0, 2), replace(part(1, 2), generation=3)]
    for one in reversed(told) if is_newer_first else told:
        assert book.on_written(one, 0.0) is None
    assert book.lost_step == 10
    assert book.next_request(0.0, 3, is_settled=True) is not None
    assert book.on_written(replace(part(0, 2), generation=3), 0.0) is not None


def test_a_storage_that_takes_nothing_leaves_nothing_here() -> None:
    book = ledger()
    for step in range(1, 1000):
        late = replace(part(1, 3), step=step, folder=f"1-{step}")
        book.on_written(replace(late, index=0), 0.0)
        book.on_lost(living(0, 1))
        assert book.on_failed(failed(step), 2)
        assert book.on_written(late, 0.0) is None, "it failed already"
    assert not book._parts
    assert not book._heirs
    assert len(book._failed) == MOST_FAILED


def test_of_failures_of_one_cause_the_first_is_told_the_second_the_fourth_and_so_on() -> None:
    book = ledger()

    def fail(count: int, cause: str = "[Errno 28] /ckpt/1-{}/stripe-0-of-2.tmp-9a: no space") -> list[int | None]:
        return [book.count_failure(cause.format(step), is_awaited=False) for step in range(count)]

    assert fail(9) == [1, 1, None, 2, None, None, None, 4, None]
    assert fail(1, "permission denied") == [1]
    assert fail(3) == [1, 1, None]
    assert book.count_failure("[Errno 28] /ckpt/1-10/stripe-0-of-2.tmp-3: no space", is_awaited=True) == 2
    book.on_committed(10)
    assert fail(2) == [1, 1]


def test_losing_everybody_clears_what_was_in_the_making() -> None:
    book = ledger()
    book.on_written(part(0, 2), 0.0)
    book.on_all_lost()
    assert book.on_written(part(1, 2), 0.0) is None


def test_what_was_saved_since_all_agreed_counts_for_nothing() -> None:
    book = ledger()
    book.on_committed(10)
    book.on_written(part(0, 2), 0.0)
    book.distrust(Distrust(9, attempt=1, generation=2))
    assert book.committed_step == 9
    assert book.on_written(part(1, 2), 0.0) is None
    assert book.on_written(part(0, 2), 0.0) is None, "a part that was under way"
    again = [replace(part(index, 2), generation=3) for index in (0, 1)]
    assert [book.on_written(one, 0.0) is not None for one in again] == [False, True], "the next generation's counts"


def test_what_an_attempt_before_found_to_be_wrong_does_not_count_either() -> None:
    book = ledger()
    for which in (Distrust(9, attempt=2, generation=1), Distrust(50, attempt=1, generation=7)):
        book.distrust(which)
    assert book.on_written(part(0, 1), 0.0) is None, "of an attempt before that, whatever its generation"
    assert book.on_written(replace(part(0, 1), folder="2-10", generation=1), 0.0) is None
    assert book.on_written(replace(part(0, 1), folder="3-10", generation=1), 0.0) is not None, "numbers begin anew"


def test_the_interval_follows_what_is_measured_only_where_that_is_asked_for() -> None:
    measured = best_interval_s(0.5, 2.0, 60.0, 1, 600.0)
    assert measured > 100.0, "what the user wants at most counts"
    for adapts, longest, expected in ((False, 100.0, 30.0), (True, 600.0, measured), (True, 100.0, 100.0)):
        book = ledger(adapts=adapts, longest_s=longest)
        book.start(100.0)
        book.on_all_lost()
        book.on_written(part(0, 2, stall_seconds=0.5, seconds=1.0), 150.0)
        book.on_written(part(1, 2, stall_seconds=0.1, seconds=2.0), 160.0)
        assert book.interval_s == expected
        assert book.next_request(131.0, 2, is_settled=True) == 1
        assert book.due_at == 131.0 + expected


def at(step: int, generation: int = 2) -> wire.StripeWritten:
    return replace(part(0, 1), step=step, folder=f"1-{step}", generation=generation)


def failed(step: int, generation: int = 2) -> wire.StripeFailed:
    return wire.StripeFailed("1.0", f"1-{step}", step, "the disk is full", generation)


def test_one_that_is_only_due_waits_until_the_one_before_is_there() -> None:
    book = ledger()
    book.start(0.0)
    assert book.next_request(30.0, 2, is_settled=True) == 1
    assert book.next_request(65.0, 2, is_settled=True) is None
    assert book.on_written(at(10), 70.0) is not None
    assert book.next_request(95.0, 2, is_settled=True) is None, "its manifest is being written"
    book.on_manifest(FOLDER)
    book.on_committed(10)
    assert book.next_request(96.0, 2, is_settled=True) == 2, "it is long due"
    assert book.next_request(125.0, 2, is_settled=True) is None


ANSWERS: dict[str, Callable[[CheckpointLedger], object]] = {
    "a stripe that failed": lambda book: book.on_failed(failed(10), 2),
    "a manifest that failed": lambda book: (book.on_written(at(10), 31.0), book.on_answered(10)),
    "states that differ": lambda book: book.distrust(Distrust(5, 1, 2)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_one_that_failed_does_not_hold_up_the_next(answer: str) -> None:
    book = ledger()
    book.start(0.0)
    assert book.next_request(30.0, 2, is_settled=True) == 1
    assert book.next_request(60.0, 2, is_settled=True) is None
    ANSWERS[answer](book)
    assert book.next_request(61.0, 2, is_settled=True) == 2


def test_the_next_generation_does_not_wait_for_what_was_asked_of_the_one_before() -> None:
    book = ledger()
    book.start(0.0)
    assert book.next_request(30.0, 2, is_settled=True) == 1
    assert book.next_request(60.0, 3, is_settled=True) == 2
    assert book.next_request(90.0, 3, is_settled=True) is None


def test_what_is_wanted_or_was_lost_does_not_wait() -> None:
    book = ledger()
    book.start(0.0)
    assert book.next_request(30.0, 2, is_settled=True) == 1
    book.want(11)
    assert book.next_request(31.0, 2, is_settled=True) == 2
    book.on_written(replace(part(0, 4), generation=1), 32.0)
    book.on_lost(living(0, 3))
    assert book.next_request(33.0, 2, is_settled=True) == 3


def test_the_longest_interval_comes_from_the_spec() -> None:
    asked = {"name": "a", "entrypoint": "a.py", "checkpoint": {"every": "auto", "max_interval": "20s"}}
    terms = Terms.of("job", 1, parse_spec(asked))
    ledger = JobState(terms, Wish("run", 1), restarts=0, scalings=0).ledger
    assert (ledger.interval_s, ledger.longest_s, ledger.adapts) == (20.0, 20.0, True), "also before it is measured"
    with pytest.raises(SpecError, match=r"checkpoint\.max_interval: must be more than 0"):
        parse_spec({**asked, "checkpoint": {"max_interval": 0}})


def test_with_every_steps_none_is_asked_for_by_time_whatever_is_measured() -> None:
    asked = {"name": "a", "entrypoint": "a.py", "checkpoint": {"every": "auto", "every_steps": 100}}
    ledger = JobState(Terms.of("job", 1, parse_spec(asked)), Wish("run", 1), restarts=0, scalings=0).ledger
    ledger.start(0.0)
    ledger.on_written(part(0, 2, stall_seconds=0.5), 1.0)
    assert ledger.on_written(part(1, 2), 2.0) is not None
    ledger.start(3.0)  # as after a loss
    assert ledger.next_request(1e6, 2, is_settled=True) is None


def test_youngs_interval() -> None:
    day = 24 * 3600.0
    assert best_interval_s(0.01, 0.1, 0.0, 0, 600.0) == (2 * 0.01 * day) ** 0.5
    assert best_interval_s(1.0, 1.0, day, 1, 600.0) == (2 * 1.0 * day) ** 0.5, "one loss in a day, after a prior of one"
    assert best_interval_s(0.0, 0.0, 0.0, 0, 600.0) == SHORTEST_S
    assert best_interval_s(100.0, 1.0, 0.0, 0, 600.0) == 600.0
    assert best_interval_s(100.0, 0.1, 0.0, 0, 60.0) == 60.0
    assert best_interval_s(100.0, 0.1, 0.0, 0, 2.0) == 2.0, "shorter than is chosen unasked"
    assert best_interval_s(0.001, 60.0, 0.0, 0, 60.0) == 240.0, "writing takes long: not all the time"


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1e7), st.integers(0, 50))
def test_more_losses_never_make_it_longer_and_a_longer_stall_never_shorter(
    stall: float, write: float, running: float, losses: int
) -> None:
    here = best_interval_s(stall, write, running, losses, 600.0)
    assert here >= SHORTEST_S
    assert (
        best_interval_s(stall, write, running, losses + 1, 600.0)
        <= here
        <= best_interval_s(stall + 1, write, running, losses, 600.0)
    )
