from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import AloneRun
from groups import fake_group, on_ranks, record_of
from programs.reading import Failing, Noisy
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rubato.data import randomness
from rubato.data.prefetch import Prefetcher
from rubato.engine.evaluation import KEPT_READERS, Evaluator
from rubato.engine.results import Completed
from rubato.engine.session import Session
from rubato.engine.table import fill_table
from rubato.errors import GenerationLost, ModelError

NUMBERS = torch.randn(53, generator=torch.Generator().manual_seed(1)) * 1e4
ROWS = list(NUMBERS)
PAUSE_S = 0.02
"""Now and then, for a process that reads ahead imports torch first."""

pytestmark = pytest.mark.usefixtures("generators")


def begun(model: nn.Module | None = None) -> tuple[Session, nn.Module]:
    """A session that stands before its first step."""
    model = model or nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    run = AloneRun()
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=ROWS)
    next(run.steps())
    return run.session, model


def evaluate(session: Session, *arguments: Any) -> float:
    return Evaluator(session).evaluate(*arguments)


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean()


def alone(batch: int) -> float:
    return evaluate(begun()[0], ROWS, mean, batch, None)


@pytest.mark.parametrize("batch", [1, 10, 53, 100])
def test_the_mean_counts_every_sample_once(batch: int) -> None:
    assert alone(batch) == pytest.approx(float(NUMBERS.double().mean()), rel=1e-5)


def test_a_registered_average_is_evaluated_without_being_trained() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5), nn.BatchNorm1d(1))
    average = AveragedModel(model)
    run = AloneRun()
    run.register("average", average)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=ROWS)
    next(run.steps())
    before = {name: value.clone() for name, value in average.state_dict().items()}
    first, second = (evaluate(run.session, ROWS, lambda x: average(x[:, None]).mean(), size) for size in (10, 53))
    assert first == pytest.approx(second, rel=1e-4), "statistics of a batch, or dropout, were in it"
    assert all(torch.equal(value, before[name]) for name, value in average.state_dict().items())
    assert average.training, "as it was"


def test_the_model_is_as_before_and_does_not_train_meanwhile() -> None:
    session, model = begun(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5), nn.BatchNorm1d(1).eval()))
    seen = []

    def look(x: torch.Tensor) -> float:
        seen.append((any(module.training for module in model.modules()), torch.is_grad_enabled()))
        return float(torch.rand(()))

    before = randomness.capture().torch_cpu.clone()
    first = evaluate(session, ROWS, look, 10, None)
    assert set(seen) == {(False, False)}
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert torch.equal(randomness.capture().torch_cpu, before)
    assert evaluate(session, ROWS, look, 10, None) == first


def test_the_model_is_as_before_after_an_error_too() -> None:
    session, model = begun()

    def fail(_: torch.Tensor) -> float:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        evaluate(session, ROWS, fail, 10, None)
    assert all(module.training for module in model.modules())


def test_batches_are_given_in_their_parts() -> None:
    session, _ = begun()
    pairs = [(number, index) for index, number in enumerate(NUMBERS)]
    assert evaluate(session, pairs, lambda x, index: index.double().mean(), 7, None) == pytest.approx(26.0)
    named = [{"x": number} for number in NUMBERS]
    assert evaluate(session, named, lambda batch: float(len(batch["x"]) > 0), 7, None) == 1.0
    assert evaluate(session, ROWS, lambda count: count, 7, len) == pytest.approx((7 * 7 * 7 + 4 * 4) / 53)


@pytest.mark.parametrize(("value", "result"), [(float("nan"), math.inf), (float("inf"), math.inf)])
def test_a_value_that_is_not_finite_shows(value: float, result: float) -> None:
    assert evaluate(begun()[0], ROWS, lambda _: value, 10, None) == result


def test_what_is_read_ahead_has_the_same_bits_and_its_processes_stay() -> None:
    run = AloneRun()
    model = nn.Linear(21, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=Noisy())
    next(run.steps())

    def spread(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["x"].std() + torch.rand(())

    evaluator = Evaluator(run.session)
    plain = evaluator.evaluate(Noisy(), spread, 3)
    dataset = Noisy()
    try:
        ahead = [evaluator.evaluate(dataset, spread, 3, None, 1)]
        (reader,) = [reader for _, reader in evaluator._readers.values()]
        pids, deadline = reader.pids, time.monotonic() + 100
        while not reader.read_ahead and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            ahead.append(evaluator.evaluate(dataset, spread, 3, None, 1))
        assert reader.read_ahead > 0
        assert reader.pids == pids
        assert set(ahead) == {plain}
        evaluator.evaluate(dataset, spread, 7, None, 1)
        assert len(evaluator._readers) == 2, "other chunks are read by others"
    finally:
        evaluator.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_chunk_that_cannot_be_read_ahead_is_read_here_and_told(tmp_path: Path) -> None:
    run = AloneRun()
    model = nn.Linear(21, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=Noisy())
    next(run.steps())
    evaluator, dataset = Evaluator(run.session), Failing(good_pid=os.getpid())
    deadline = time.monotonic() + 100
    try:
        while not run.notices and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            assert evaluator.evaluate(dataset, lambda batch: float(len(batch["x"])), 8, None, 1) == 8.0
    finally:
        evaluator.close()
    assert "of an evaluation could be read in the training process only" in run.notices[0].message


@pytest.mark.timeout(400)
def test_what_reads_ahead_is_bounded_and_holds_nothing_between_evaluations() -> None:
    run = AloneRun()
    run.prepare(model=(model := nn.Linear(21, 1)), optimizer=torch.optim.SGD(model.parameters()), dataset=Noisy())
    next(run.steps())
    evaluator, pids, deadline = Evaluator(run.session), list[int](), time.monotonic() + 100

    def readers() -> list[Prefetcher]:
        return [reader for _, reader in evaluator._readers.values()]

    def until_read_ahead(batch: dict[str, torch.Tensor]) -> float:
        if any(reader.read_ahead for reader in readers()):
            raise KeyboardInterrupt  # in the middle, with chunks of which nobody will ask any more
        time.sleep(PAUSE_S)
        return 0.0

    try:
        dataset = Noisy()
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() < deadline:
                evaluator.evaluate(dataset, until_read_ahead, 1, None, 2)
        (reader,) = readers()
        assert reader.read_ahead
        assert not reader._arrived
        assert not reader._owed
        for _ in range(KEPT_READERS + 2):  # as of a program that makes its dataset anew each time
            evaluator.evaluate(Noisy(), lambda batch: 0.0, 8, None, 1)
            pids += [pid for one in readers() for pid in one.pids]
        assert len(readers()) == KEPT_READERS
        living = {pid for pid in pids if Path(f"/proc/{pid}").exists()}
        assert living == {pid for one in readers() for pid in one.pids}
    finally:
        evaluator.close()


def test_mistakes() -> None:
    session, _ = begun()
    with pytest.raises(ModelError, match="mean over the batch as one number, got tensor"):
        evaluate(session, ROWS, lambda x: x, 10, None)
    with pytest.raises(ModelError, match="as one number, got None"):
        evaluate(session, ROWS, lambda _: None, 10, None)
    with pytest.raises(ModelError, match="batch >= 1, got 0"):
        evaluate(session, ROWS, mean, 0, None)
    with pytest.raises(ModelError, match="has no samples"):
        evaluate(session, [], mean, 10, None)


class Ranks:
    """Sessions of several workers; `lose` some at the first exchange, and the others go on without them."""

    def __init__(self, world: int, lose: tuple[int, ...] = ()) -> None:
        self.sessions = [begun()[0] for _ in range(world)]
        self.survivors = [rank for rank in range(world) if rank not in lose]
        self.computed: list[list[float]] = [[] for _ in range(world)]
        self._next_group = fake_group(len(self.survivors))
        group = fake_group(world)
        for rank, session in enumerate(self.sessions):
            session.record, session.rank, session.comm = record_of(world), rank, group[rank]
            session.membership = self._membership(rank)
        for rank in lose:
            group[rank].bury()

    def _membership(self, rank: int) -> Any:
        ranks = self

        class Recovering:
            def recover(self, cause: str) -> None:
                session, place = ranks.sessions[rank], ranks.survivors.index(rank)
                session.record = record_of(len(ranks.survivors), 2)
                session.rank, session.comm = place, ranks._next_group[place]

        return Recovering()

    def evaluate(self, batch: int) -> list[float]:
        def play(place: int) -> float:
            rank = self.survivors[place]

            def fn(x: torch.Tensor) -> torch.Tensor:
                self.computed[rank].append(float(x[0]))
                return x.mean()

            return evaluate(self.sessions[rank], ROWS, fn, batch, None)

        return on_ranks(len(self.survivors), play)

    def all_computed(self) -> list[float]:
        return sorted(first for one in self.computed for first in one)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("batch", [7, 40])
def test_the_bits_do_not_depend_on_the_worker_count(world: int, batch: int) -> None:
    ranks = Ranks(world)
    assert ranks.evaluate(batch) == [alone(batch)] * world
    assert ranks.all_computed() == sorted(float(NUMBERS[first]) for first in range(0, 53, batch))


@pytest.mark.parametrize(("world", "lose"), [(2, (0,)), (3, (2,)), (4, (0, 1)), (4, (1, 2, 3))])
def test_after_a_loss_only_what_is_missing_is_computed(world: int, lose: tuple[int, ...]) -> None:
    ranks = Ranks(world, lose)
    assert ranks.evaluate(7) == [alone(7)] * (world - len(lose))
    assert ranks.all_computed() == sorted(float(NUMBERS[first]) for first in range(0, 53, 7))


class Lossy:
    """What `fill_table` needs of the session of rank 0 of 2, whose exchanges fail or bring what the script says."""

    rank, world = 0, 2
    present_stage = "update"

    def __init__(self, script: list[Any]) -> None:
        self.script, self.done = script, []
        self.control = self.membership = self

    def check(self, key: Any) -> None: ...

    def stage(self, name: str) -> None: ...

    def knows_table(self, key: Any) -> bool:
        return False

    def recover(self, cause: str) -> None:
        self.done.append("recover")

    def gather_table(self, key: Any, table: torch.Tensor) -> torch.Tensor:
        self.done.append("gather")
        told = self.script.pop(0)
        if told is None:
            raise GenerationLost("a peer is gone")
        return torch.where(table.isnan(), torch.tensor(told, dtype=torch.float64), table)

    def complete_table(self, key: Any, table: torch.Tensor) -> None:
        self.done.append("complete")


def test_after_a_loss_members_ask_before_they_compute_however_often_it_comes() -> None:
    nan = math.nan
    session = Lossy([None, None, [nan, 7.0, nan, nan], [nan] * 4])

    def value(row: int) -> float:
        session.done.append(row)
        return 5.0 + row

    table = torch.full((4,), nan, dtype=torch.float64)
    whole = fill_table(session, (3, 1), table, value)  # type: ignore[arg-type]
    assert whole.tolist() == [5.0, 7.0, 7.0, 8.0]
    assert session.done == [0, 2, "gather", "recover", "gather", "recover", "gather", 3, "gather", "complete"]


def test_rows_that_members_know_are_not_computed() -> None:
    nan = math.nan
    session = Lossy([[[nan, nan], [1.0, 2.0], [3.0, 4.0]], [[nan, nan]] * 3])
    table = torch.full((3, 2), nan, dtype=torch.float64)
    whole = fill_table(session, (3, 1), table, lambda row: (8.0, 9.0), ask_first=True)  # type: ignore[arg-type]
    assert whole.tolist() == [[8.0, 9.0], [1.0, 2.0], [3.0, 4.0]]
    assert session.done == ["gather", "gather", "complete"]


def test_who_missed_the_end_takes_the_result_and_computes_nothing() -> None:
    session, _ = begun()
    session.completed = Completed((session.completed.key[0], 1), torch.tensor([2.0, 4.0], dtype=torch.float64))
    session.completed = Completed((0, 1), torch.tensor([2.0, 4.0], dtype=torch.float64))
    table = session.gather_table((0, 1), torch.full((2,), float("nan"), dtype=torch.float64))
    assert table.tolist() == [2.0, 4.0]
    assert session.knows_table((0, 1))
    assert not session.knows_table((0, 2))


def test_evaluations_are_numbered_within_their_step() -> None:
    session, _ = begun()
    step, _ = session.completed.key
    for ordinal in (1, 2, 3):
        evaluate(session, ROWS, mean, 10, None)
        assert session.completed.key == (step, ordinal)
