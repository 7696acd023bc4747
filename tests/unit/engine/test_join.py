"""Feeding and following, ranks as threads: what the members completed reaches every joiner once, bit for bit."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from groups import fake_group, gloo_group, on_ranks, record_of
from torch import nn

from rubato.engine.comm import Communicator
from rubato.engine.header import Header, Leaving
from rubato.engine.join import BACKLOG_STATES, CLOSE, PATIENCE, Feeder, Follower
from rubato.engine.reduction import Reduced
from rubato.engine.results import Completed, result_bytes
from rubato.engine.shares import total_bytes
from rubato.engine.state import TrainingState
from rubato.engine.sync import Snapshot
from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord

LENGTH = 37


def state_of(seed: int) -> TrainingState:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(3, 5)
    return TrainingState({"": model}, {"": torch.optim.SGD(model.parameters(), lr=0.1)}, {}, {})


def result(step: int, ordinal: int, pieces: int) -> Completed:
    """What every member holds: a reduction in as many chunks as it had members, or an evaluation's table."""
    generator = torch.Generator().manual_seed(step * 10 + ordinal)
    if ordinal:
        return Completed((step, ordinal), torch.rand(4, dtype=torch.float64, generator=generator))
    vector = torch.randn(LENGTH, generator=generator)
    header = Header(1, 1, step, 2, 1, Leaving.NO, 0, True, None, 5, ((0.5, 2.0),))
    return Completed((step, 0), Reduced(vector.chunk(pieces), (header,) * pieces, bytes([step % 250, 1])))


def content(completed: Completed) -> Any:
    if isinstance(completed.result, torch.Tensor):
        return completed.key, completed.result.tolist()
    assert completed.result is not None
    vector = torch.cat([chunk.reshape(-1) for chunk in completed.result.chunks])
    return completed.key, vector.tolist(), completed.result.headers, completed.result.integers


def joining(world: int, joiners: Sequence[int]) -> GenerationRecord:
    record = record_of(world, 2)
    return replace(record, follows=1, joining=tuple(record.members[rank].incarnation for rank in joiners))


class Members:
    """The members' main threads: they complete results, and switch together once all are ready."""

    def __init__(self, holders: Sequence[int], least: int) -> None:
        self.ready: set[int] = set()
        self.holders = holders
        self.least = least
        self.switched_at: int | None = None
        self._barrier = threading.Barrier(len(holders), action=self._decide)
        self._at = 0

    def _decide(self) -> None:
        if self._at >= self.least and self.ready == set(self.holders):
            self.switched_at = self._at
        self._at += 1

    def play(self, rank: int, feeder: Feeder, completed: Callable[[int], Completed]) -> None:
        feeder.wait_copied()
        count = 0
        while True:
            self._barrier.wait(30)
            if self.switched_at is not None:
                break
            feeder.add(completed(count))
            count += 1
        feeder.close()
        feeder.finish()


def keys(count: int) -> tuple[int, int]:
    """Every third step is followed by an evaluation."""
    return (count // 4 * 3 + count % 4, 0) if count % 4 < 3 else (count // 4 * 3 + 2, 1)


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize(("world", "joiners"), [(2, (1,)), (3, (1, 2)), (3, (2,)), (4, (2, 3)), (4, (3,))])
def test_every_result_arrives_once_in_order(world: int, joiners: tuple[int, ...], is_real: bool) -> None:
    record = joining(world, joiners)
    holders = [rank for rank in range(world) if rank not in joiners]
    members, dice = Members(holders, least=11), random.Random(world)
    states = [state_of(9 if rank in joiners else 1) for rank in range(world)]

    def play(rank: int, group: Sequence[Communicator]) -> list[Any]:
        if rank in joiners:
            follower = Follower(record, group[rank], torch.float32, torch.device("cpu"))
            received = follower.snapshot()
            states[rank].install(received.document, received.tensors)
            assert states[rank].digest() == states[0].digest()
            assert received.extra == {"step": 0}
            found = []
            while (one := follower.next()) is not None:
                found.append(content(one))
                threading.Event().wait(dice.random() / 500)
            return found
        feeder = Feeder(
            record,
            group[rank],
            lambda part, parts: Snapshot(states[rank], {"step": 0}, part, parts),
            lambda number: members.ready.add(rank),
            lambda number, cause: pytest.fail(cause),
        )
        members.play(rank, feeder, lambda count: result(*keys(count), pieces=len(holders)))
        return []

    if is_real:
        with gloo_group(world) as group:
            found = on_ranks(world, lambda rank: play(rank, group))
    else:
        fakes = fake_group(world)
        found = on_ranks(world, lambda rank: play(rank, fakes))
    assert members.switched_at is not None
    expected = [content(result(*keys(count), pieces=len(holders))) for count in range(members.switched_at)]
    for rank in joiners:
        assert found[rank] == expected


def behind_by(count: int, keys: Sequence[tuple[int, int]] = ()) -> tuple[Feeder, Follower, list[int]]:
    """A joiner that has the state and so many results to repeat, and what its member was told: that it may switch."""
    group, record = fake_group(2), joining(2, (1,))
    ready: list[int] = []
    feeder = Feeder(
        record, group[0], lambda part, parts: Snapshot(state_of(1), {}, part, parts), ready.append, lambda *_: None
    )
    feeder.wait_copied()
    for key in keys or [(number, 0) for number in range(count)]:
        feeder.add(result(*key, pieces=1))
    follower = Follower(record, group[1], torch.float32, torch.device("cpu"))  # only now: no round came between
    follower.snapshot()
    return feeder, follower, ready


def test_members_are_ready_only_when_the_joiner_is_close() -> None:
    """A joiner that takes nothing yet (it installs the state) keeps them from switching, however long that takes."""
    feeder, follower, ready = behind_by(CLOSE + 4)
    for count in range(CLOSE + 4, 2 * PATIENCE):
        threading.Event().wait(0.03)
        feeder.add(result(count, 0, pieces=1))
    assert ready == []
    for _ in range(2 * PATIENCE):
        follower.next()
    while not ready:
        threading.Event().wait(0.01)
    feeder.close()
    feeder.finish()
    while follower.next() is not None:
        pass
    assert ready == [2]


def test_a_joiner_that_is_far_behind_is_waited_for_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    size = result_bytes(result(0, 0, pieces=1))
    monkeypatch.setattr("rubato.engine.join.BACKLOG_BYTES", 7 * size)
    feeder, follower, ready = behind_by(6)  # and repeats nothing
    threading.Event().wait(0.2)
    assert ready == []
    feeder.add(result(6, 0, pieces=1))
    while not ready:
        threading.Event().wait(0.01)
    feeder.close()
    feeder.finish()
    assert sum(1 for _ in iter(follower.next, None)) == 7


def test_what_comes_about_while_the_state_is_on_its_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow link the training makes more than the link carries: to wait would make it worse."""
    monkeypatch.setattr("rubato.engine.join.LEAST_BACKLOG_BYTES", 0)
    group, record = fake_group(2), joining(2, (1,))
    state, ready = state_of(1), list[int]()
    feeder = Feeder(
        record, group[0], lambda part, parts: Snapshot(state, {}, part, parts), ready.append, lambda *_: None
    )
    feeder.wait_copied()
    size, total = result_bytes(result(0, 0, pieces=1)), total_bytes(state.capture()[1])
    count = 0
    while not ready:
        assert count * size <= BACKLOG_STATES * total + size, "nothing limits what is kept"
        feeder.add(result(count, 0, pieces=1))
        count += 1
    assert count * size >= BACKLOG_STATES * total, "given up before it was clear"
    feeder.close()
    follower = Follower(record, group[1], torch.float32, torch.device("cpu"))
    follower.snapshot()
    feeder.finish()
    assert [one.key for one in iter(follower.next, None)] == [(step, 0) for step in range(count)]
    assert ready == [2]


def test_a_joiner_that_falls_behind_is_waited_for_before_it_falls_further() -> None:
    behind = CLOSE + 2
    feeder, follower, ready = behind_by(behind)
    for _ in range(2):
        follower.next()  # it has repeated one
    added = behind
    while not ready:
        assert added <= behind + 20 * PATIENCE
        feeder.add(result(added, 0, pieces=1))
        threading.Event().wait(0.05)
        added += 1
    feeder.close()
    feeder.finish()
    assert sum(1 for _ in iter(follower.next, None)) == added - 2


def watch_rounds(monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Let a round have three results. Returns the bytes of one, and those of each round, as they are sent."""
    size = result_bytes(result(0, 0, pieces=1))
    monkeypatch.setattr("rubato.engine.join.ROUND_BYTES", 3 * size)
    rounds: list[int] = []
    real = Feeder._payload

    def watched(self: Any, mine: torch.Tensor) -> Any:
        rounds.append(mine.numel())
        return real(self, mine)

    monkeypatch.setattr(Feeder, "_payload", watched)
    return size, rounds


def test_many_results_travel_in_rounds_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    size, rounds = watch_rounds(monkeypatch)
    feeder, follower, _ = behind_by(20)
    feeder.close()
    feeder.finish()
    assert [one.key for one in iter(follower.next, None)] == [(step, 0) for step in range(20)]
    assert max(rounds) <= 3 * (size + 64)


def test_small_tables_between_the_results_do_not_make_rounds_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams tell where they stand in a table behind each step."""
    size, rounds = watch_rounds(monkeypatch)
    feeder, follower, _ = behind_by(0, keys=[(step, ordinal) for step in range(20) for ordinal in (0, 1)])
    feeder.close()
    feeder.finish()
    assert sum(1 for _ in iter(follower.next, None)) == 40
    assert max(rounds) <= 3 * (size + 64)


def test_a_joiner_that_comes_no_nearer_is_waited_for() -> None:
    """It repeats a result for each that is added, and stays three behind."""
    behind = CLOSE + 2
    feeder, follower, ready = behind_by(behind)
    follower.next()
    added = behind
    while not ready:
        assert added < behind + 2 * PATIENCE
        threading.Event().wait(0.1)  # rounds, in which it is seen to be no nearer
        feeder.add(result(added, 0, pieces=1))
        follower.next()
        added += 1
    assert added >= behind + PATIENCE - 1
    feeder.close()
    feeder.finish()
    assert sum(1 for _ in iter(follower.next, None)) == behind - 1


def test_a_joiner_that_is_lost_is_given_up_and_the_member_goes_on() -> None:
    group, record = fake_group(2), joining(2, (1,))
    told: list[tuple[int, str]] = []
    kept: list[weakref.ref[Snapshot]] = []

    def capture(part: int, parts: int) -> Snapshot:
        snapshot = Snapshot(state_of(1), {}, part, parts)
        kept.append(weakref.ref(snapshot))
        return snapshot

    feeder = Feeder(
        record,
        group[0],
        capture,
        lambda number: pytest.fail("nobody is up to date"),
        lambda number, cause: told.append((number, cause)),
    )
    group[1].bury()
    feeder.wait_copied()
    with pytest.raises(GenerationLost, match="rank 1 is gone"):
        feeder.finish()
    assert told == [(2, "rank 1 is gone")]
    assert feeder.has_failed
    gc.collect()
    assert [one for one in kept if one() is not None] == [], "its share of the state is dropped"
    feeder.add(result(0, 0, pieces=1))  # costs nothing, and breaks nothing


def test_a_joiner_hears_that_the_members_are_gone() -> None:
    group, record = fake_group(2), joining(2, (1,))
    follower = Follower(record, group[1], torch.float32, torch.device("cpu"))
    group[0].bury()
    with pytest.raises(GenerationLost):
        follower.snapshot()
    with pytest.raises(GenerationLost):
        follower.next()
