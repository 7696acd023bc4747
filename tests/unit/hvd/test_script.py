"""A Horovod script has the bits of Rubato's own loop; what would not is refused with what to write instead."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun, loss_of
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import rubato.hvd as hvd
from rubato.errors import EntrypointError, ModelError, ProtocolError
from rubato.hvd.script import as_program, command_line
from rubato.program import load_entrypoint
from rubato.wire.spec import JobSpec

pytestmark = pytest.mark.usefixtures("generators")
EPOCHS = {"epochs": 3}


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    hvd.init()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(ROWS, **{"batch_size": 8, "shuffle": True, **more})  # type: ignore[arg-type]


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def run_script(main: Callable[[], None], **config: Any) -> AloneRun:
    run = AloneRun(config=config or EPOCHS)
    as_program(main)(run)
    run.finish()
    return run


def prepared(run: AloneRun) -> tuple[nn.Module, torch.optim.Optimizer, ExponentialLR]:
    """What the scripts build, for a loop of Rubato's own."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = ExponentialLR(optimizer, 0.5)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=ROWS)
    return model, optimizer, scheduler


def written_out() -> AloneRun:
    run = AloneRun(config=EPOCHS)
    model, optimizer, scheduler = prepared(run)
    for epoch in run.epochs():
        for step in epoch:
            for x, y in step:
                step.backward(loss_of(model, x, y))
            optimizer.step()
        scheduler.step()
        run.log(rate=scheduler.get_last_lr()[0])
    return run


def rows_of(run: AloneRun) -> list[tuple[int, float, float | None]]:
    return [(row.step, row.values["loss"], row.values.get("rate")) for row in run.rows]


@pytest.mark.parametrize("scheduler_comes", ["before", "behind"])
def test_it_has_the_bits_losses_and_values_of_the_loop_written_out(scheduler_comes: str) -> None:
    def main() -> None:
        hvd.init()
        model = nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
        if scheduler_comes == "before":
            scheduler = ExponentialLR(plain, 0.5)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        if scheduler_comes == "behind":
            scheduler = ExponentialLR(optimizer, 0.5)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        sampler = DistributedSampler(ROWS, num_replicas=hvd.size(), rank=hvd.rank())  # type: ignore[arg-type]
        batches = DataLoader(ROWS, batch_size=8, sampler=sampler)  # type: ignore[arg-type]
        for epoch in range(3):
            sampler.set_epoch(epoch)
            train_on(model.train(), optimizer, batches)
            scheduler.step()
            hvd.allreduce(torch.tensor(scheduler.get_last_lr()[0], dtype=torch.float64), name="rate")
            model.eval()
            assert sum(len(x) for x, _ in batches) == len(ROWS), "a pass in eval mode is the script's own"

    plain_iter, plain_backward = DataLoader.__iter__, torch.Tensor.backward
    said = run_script(main)
    assert (DataLoader.__iter__, torch.Tensor.backward) == (plain_iter, plain_backward)
    torch.manual_seed(0)
    expected = written_out()
    assert said.finish() == expected.finish()
    assert rows_of(said) == rows_of(expected)
    assert said.notices == [], "the scheduler is registered, and losses are told"


@pytest.mark.parametrize("begins", ["anew", "with a state"])
def test_hooks_of_the_optimizer_see_the_whole_batch_once_an_update(begins: str) -> None:
    def main() -> None:
        model, optimizer = build()
        if begins == "with a state":  # as the engine gives one to who joins or resumes: torch wraps `step` then
            optimizer.load_state_dict(optimizer.state_dict())
        scheduler = ExponentialLR(optimizer, 0.5)

        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
        for _ in range(3):
            train_on(model, optimizer, loader())

    said = run_script(main)
    torch.manual_seed(0)
    run = AloneRun(config=EPOCHS)
    model, optimizer, scheduler = prepared(run)
    for step in run.steps():
        for x, y in step:
            step.backward(loss_of(model, x, y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
    assert said.finish() == run.finish()


def test_gradients_that_are_cleared_behind_the_step_count() -> None:
    def main() -> None:
        model, optimizer = build()
        for x, y in loader():
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert len(run_script(main, epochs=1).rows) == 3


def test_a_script_that_comes_late_goes_on_where_the_job_is() -> None:
    """As a worker does that joins in the second epoch: its first pass is empty, and leaves nothing behind."""
    seen: list[tuple[int, int, float]] = []

    def main() -> None:
        model, optimizer = build()
        scheduler = ExponentialLR(optimizer, 0.5)
        state = hvd.elastic.TorchState(model, optimizer, epoch=0, best=0.0)

        @hvd.elastic.run
        def train(state: Any) -> None:
            for state.epoch in range(state.epoch, 3):  # noqa: B020 (as Horovod writes it)
                passed = 0
                for x, y in loader():
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
                    state.commit()
                    passed += 1
                scheduler.step()
                state.best = state.best + 1.0
                seen.append((state.epoch, passed, optimizer.param_groups[0]["lr"]))

        train(state)

    run = AloneRun(config=EPOCHS)
    start = run.session.start

    def start_late(*arguments: Any) -> None:
        start(*arguments)
        run.session.step = 3  # the first of the second epoch
        run.state["rubato.hvd"] = [{"epoch": 1, "best": 7.0}]

    run.session.start = start_late  # type: ignore[method-assign]
    as_program(main)(run)
    assert [one[0] for one in seen] == [0, 1, 2]
    assert seen[0][1] == 0
    assert seen[1][1] > 0
    # Steps began with 0.1: the empty pass halved it, which was undone.
    assert [one[2] for one in seen] == pytest.approx([0.05, 0.05, 0.025])
    assert run.state["rubato.hvd"] == [{"epoch": 2, "best": 8.0}]


def count_between(run: AloneRun, seen: list[tuple[int, bool, str]]) -> Callable[[], None]:
    """A script that notes after each pass how many batches it had, whether the steps had begun, and the stage."""

    def main() -> None:
        model, optimizer = build()
        for _ in range(3):
            passed = 0
            for x, y in loader():
                loss_of(model, x, y).backward()
                optimizer.step()
                passed += 1
            seen.append((passed, run.session.record is not None, run.hearing.present_stage))

    return main


def begin_at(run: AloneRun, last_step: int, step: int) -> None:
    """The job stood at one step when the worker was started, and at another one when it was let in."""
    start = run.session.start
    run.hearing.start = replace(run.hearing.start, last_step=last_step)

    def start_late(*arguments: Any) -> None:
        start(*arguments)
        run.session.step = step

    run.session.start = start_late  # type: ignore[method-assign]


@pytest.mark.parametrize(("last_step", "before"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (9, 2)])
def test_passes_that_were_over_when_a_worker_was_started_come_before_it_stands_by(last_step: int, before: int) -> None:
    run, seen = AloneRun(config=EPOCHS), []
    begin_at(run, last_step, 6)
    as_program(count_between(run, seen))(run)
    assert [passed > 0 for passed, _, _ in seen] == [False, False, True]
    assert [has_begun for _, has_begun, _ in seen] == [number >= before for number in range(3)]
    assert [stage == "long_phase" for _, _, stage in seen] == [True, True, False]
    assert run.finish()


@pytest.mark.parametrize("config", [EPOCHS, {"steps": 9}])
def test_who_is_started_behind_the_last_step_stands_by_in_the_last_pass(config: dict[str, int]) -> None:
    run, seen = AloneRun(config=config), []
    begin_at(run, 9, 9)
    as_program(count_between(run, seen))(run)
    assert [(passed, has_begun) for passed, has_begun, _ in seen] == [(0, False), (0, False), (0, True)]
    assert run.finish()


def test_a_worker_whose_job_went_back_behind_what_its_script_has_passed_ends() -> None:
    run, seen = AloneRun(config=EPOCHS), []
    begin_at(run, 6, 3)
    with pytest.raises(ProtocolError, match="in pass 3 of the epochs, and the job went back to epoch 2"):
        as_program(count_between(run, seen))(run)


def refuse(main: Callable[[], None], words: str, **config: Any) -> None:
    with pytest.raises(ModelError, match=words):
        run_script(main, **config)


def test_what_would_not_be_exact_is_refused() -> None:
    def each(in_batch: Callable[[nn.Module, torch.optim.Optimizer], None], **more: Any) -> Callable[[], None]:
        def main() -> None:
            model, optimizer = build()
            for x, y in loader(**more):
                loss_of(model, x, y).backward()
                in_batch(model, optimizer)

        return main

    def step(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def slow_down(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5

    refuse(each(lambda *_: None), "without optimizer.step")
    refuse(each(slow_down), "register_step_post_hook")
    refuse(each(lambda *_: hvd.allreduce(torch.zeros(1), name="loss")), "in the loop over training batches")
    refuse(each(lambda _, optimizer: optimizer.synchronize()), "register_step_pre_hook")  # type: ignore[attr-defined]
    refuse(each(lambda _, optimizer: optimizer.step(lambda: 0.0)), "closure")
    refuse(each(step, batch_size=4), "batch_size=4, and the job's batch is 8 samples")
    sampler = WeightedRandomSampler([1.0] * len(ROWS), len(ROWS))
    refuse(each(step, shuffle=False, sampler=sampler), "WeightedRandomSampler")


class Chooser(RandomSampler):
    """Derived from one that has all samples, as those of other libraries are."""


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (Chooser(ROWS), "a Chooser;"),  # type: ignore[arg-type]
        (RandomSampler(ROWS, replacement=True), "RandomSampler of 20 from 20 samples, with replacement"),  # type: ignore[arg-type]
        (RandomSampler(ROWS, num_samples=8), "RandomSampler of 8 from 20 samples;"),  # type: ignore[arg-type]
        (DistributedSampler(ROWS, num_replicas=2, rank=0), "DistributedSampler of 10 from 20"),  # type: ignore[arg-type]
    ],
)
def test_a_sampler_that_has_not_each_sample_once_is_refused(sampler: Any, words: str) -> None:
    refuse(lambda: train_on(*build(), loader(shuffle=False, sampler=sampler)), words)


class OldGradScaler(torch.amp.GradScaler):
    """As torch.cuda.amp.GradScaler, which scripts for Horovod use and which is enabled where there is a GPU only."""


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OldGradScaler])
def test_a_scaler_is_refused_before_it_trains(kind: type[torch.amp.GradScaler]) -> None:
    assert issubclass(torch.cuda.amp.GradScaler, torch.amp.GradScaler)
    scaler = kind("cpu")

    def main() -> None:
        train_on(*build(), loader())

    refuse(main, "bfloat16")
    assert scaler.is_enabled()


def passes(count: int) -> Callable[[], None]:
    def main() -> None:
        model, optimizer = build()
        for _ in range(count):
            train_on(model, optimizer, loader())

    return main


def test_script_and_job_must_agree_on_the_epochs() -> None:
    refuse(passes(2), "2 times, and the job is not over: its config says epochs=3")
    refuse(passes(4), "begins pass 4 .* says epochs=3")
    refuse(passes(1), "neither epochs nor steps", width=3)
    refuse(passes(0), "without training")
    assert len(run_script(passes(4), steps=4).rows) == 4, "steps end the job amid a pass; later ones are empty"


def test_a_loop_that_was_left_is_told() -> None:
    def main() -> None:
        model, optimizer = build()
        for x, y in loader():
            loss_of(model, x, y).backward()
            optimizer.step()
            break

    refuse(main, "break")


def test_a_second_data_set_in_train_mode_is_told() -> None:
    def main() -> None:
        model, optimizer = build()
        train_on(model, optimizer, loader())
        train_on(model, optimizer, DataLoader(ROWS[:8], batch_size=8))  # type: ignore[arg-type]

    refuse(main, "second DataLoader")


def test_calls_at_the_wrong_place() -> None:
    def early() -> None:
        hvd.size()

    def outside() -> None:
        _, optimizer = build()
        optimizer.step()

    def summed() -> None:
        hvd.init()
        hvd.DistributedOptimizer(torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1), op=hvd.Sum)

    def twice() -> None:
        _, optimizer = build()
        hvd.DistributedOptimizer(optimizer)

    def rooted() -> None:
        hvd.init()
        hvd.broadcast_object({}, root_rank=1)

    def scaled() -> None:
        hvd.init()
        hvd.allreduce(torch.zeros(1), postscale_factor=0.5)

    refuse(scaled, "postscale_factor=0.5")
    refuse(early, "before hvd.init")
    refuse(outside, "outside of a loop over a DataLoader")
    refuse(summed, "op=Sum")
    refuse(twice, "called twice")
    refuse(rooted, "root_rank=0")
    with pytest.raises(ModelError, match=r"rubato run FILE.py:main"):
        hvd.init()
    with pytest.raises(AttributeError, match=r"rubato\.hvd has no 'alltoall'"):
        hvd.alltoall  # noqa: B018


def test_two_models_of_the_same_parameters_are_told_apart_by_name() -> None:
    def main() -> None:
        hvd.init()
        layer = nn.Linear(3, 1)
        one, other = nn.Sequential(layer), nn.Sequential(layer)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        with pytest.raises(ModelError, match="model=model"):
            hvd.DistributedOptimizer(optimizer)
        train_on(one, hvd.DistributedOptimizer(optimizer, model=one), loader())
        assert other[0] is layer

    run_script(main, epochs=1)


def test_the_config_is_the_scripts_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line({"base_lr": 0.5, "verbose": True, "quiet": False, "seed": None, "steps": 3}) == [
        "--base-lr",
        "0.5",
        "--verbose",
    ]
    seen: list[list[str]] = []

    def main() -> None:
        seen.append(sys.argv[1:])
        passes(1)()

    before = list(sys.argv)
    run_script(main, epochs=1)
    assert (seen, sys.argv) == ([["--epochs", "1"]], before)


def test_a_partial_and_an_object_that_is_called_are_scripts_too() -> None:
    class Called:
        def __call__(self) -> None:
            passes(1)()

    plain = DataLoader.__iter__
    for main in (functools.partial(lambda count: passes(count)(), 1), Called()):
        run_script(main, epochs=1)
        assert DataLoader.__iter__ is plain


def test_a_function_without_arguments_is_a_horovod_scripts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "script.py").write_text("import rubato.hvd as hvd\ndef main(): hvd.init()\n")
    train, _ = load_entrypoint(JobSpec(name="a", entrypoint="script.py:main"))
    with pytest.raises(ModelError, match="without training"):
        train(AloneRun())
    monkeypatch.delitem(sys.modules, "rubato.hvd")
    (tmp_path / "other.py").write_text("def main(): ...\n")
    with pytest.raises(EntrypointError, match="takes no argument"):
        load_entrypoint(JobSpec(name="a", entrypoint="other.py:main"))
    monkeypatch.delitem(sys.modules, "script")
    monkeypatch.delitem(sys.modules, "other")
