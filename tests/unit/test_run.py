from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun, loss_of, prepared, train
from torch import nn

from rubato.errors import ModelError, NonFiniteGradient
from rubato.run import Run
from rubato.wire.events import EventKind

MISTAKE = "ModelError"


pytestmark = pytest.mark.usefixtures("generators")


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "given", "total"),
    [
        ({}, {}, 3),
        ({"epochs": 2}, {}, 6),
        ({"steps": 5}, {}, 5),
        ({"steps": 5, "epochs": 2}, {}, 5),
        ({"steps": 5}, {"epochs": 2}, 6),
        ({"epochs": 9}, {"steps": 4}, 4),
        ({}, {"steps": 4, "epochs": 7}, 4),
    ],
)
def test_the_length(config: dict[str, int], given: dict[str, int], total: int) -> None:
    run = AloneRun(config=config)
    train(run, **given)
    run.finish()
    assert [row.step for row in run.rows] == list(range(1, total + 1))


@pytest.mark.parametrize(
    "config", [{"epochs": 0}, {"steps": -1}, {"steps": 2.5}, {"epochs": "3"}, {"steps": True}], ids=str
)
def test_a_length_that_is_none(config: dict[str, Any]) -> None:
    name = next(iter(config))
    with pytest.raises(ModelError, match=f"{name} must be a whole number of at least 1, got"):
        train(AloneRun(config=config))


def test_every() -> None:
    seen: dict[int, list[int]] = {1: [], 2: [], 4: []}

    def look(step: Any) -> None:
        for count, indices in seen.items():
            if step.every(count):
                indices.append(step.index)
        with pytest.raises(ValueError, match="at least 1, got 0"):
            step.every(0)

    train(AloneRun(), look, steps=5)
    assert seen == {1: [0, 1, 2, 3, 4], 2: [1, 3, 4], 4: [3, 4]}


# --- what a step does -------------------------------------------------------------------------------------------------


def test_the_gradient_is_the_mean_over_the_global_batch() -> None:
    """Microbatches of 2, 2, 2, 2 and, in the tail of 4 samples, 2, 2: against one pass over the same samples."""
    run = AloneRun()
    model, _ = prepared(run)
    xs, ys = torch.stack([x for x, _ in ROWS]), torch.stack([y for _, y in ROWS])
    for step in run.steps(epochs=1):
        ids = [index for leaf in range(4) for index in run.session.plan.samples(step.index, leaf)]
        (expected,) = torch.autograd.grad(loss_of(model, xs[ids], ys[ids]), [next(model.parameters())])
        assert step.microbatch is None
        for x, y in step:
            assert step.microbatch is not None
            model.zero_grad()  # harmless
            step.backward(loss_of(model, x, y) / 2)
            step.backward(loss_of(model, x, y) / 2)  # adds up
        assert step.is_reduced
        gradient = next(model.parameters()).grad
        assert gradient is not None
        torch.testing.assert_close(gradient, expected)
    assert run.rows[0].values["samples"] == 8.0


def test_weights_replace_the_number_of_samples() -> None:
    run = AloneRun()
    model, _ = prepared(run)
    weights = [1.0, 0.0, 3.0, 2.0]
    step = next(run.steps(steps=1))
    expected, losses = torch.zeros(1, 3), 0.0
    for (x, y), weight in zip(iter(step), weights, strict=True):
        loss = loss_of(model, x, y)
        expected += weight * torch.autograd.grad(loss, [next(model.parameters())], retain_graph=True)[0] / 6
        losses += weight * loss.item() / 6
        step.backward(loss * (math.nan if weight == 0 else 1.0), weight=weight)  # a mean over nothing is nan
    gradient = next(model.parameters()).grad
    assert gradient is not None
    torch.testing.assert_close(gradient, expected)
    assert run.session.decision is not None
    assert run.session.decision.loss == pytest.approx(losses)


def test_a_plain_backward_trains_but_logs_no_loss() -> None:
    def run_with(backward: Callable[[Any, torch.Tensor], None]) -> tuple[AloneRun, str]:
        torch.manual_seed(0)
        run = AloneRun()
        model, optimizer = prepared(run)
        for step in run.steps():
            for x, y in step:
                backward(step, loss_of(model, x, y))
            optimizer.step()
        return run, run.finish()

    plain, digest = run_with(lambda _, loss: loss.backward())
    told, expected = run_with(lambda step, loss: step.backward(loss))
    assert digest == expected
    assert all("loss" not in row.values for row in plain.rows)
    assert all(math.isfinite(row.values["loss"]) for row in told.rows)


def test_what_was_frozen_from_the_beginning_cannot_be_trained_later() -> None:
    run = AloneRun()
    model = nn.Linear(3, 1)
    model.bias.requires_grad_(False)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=ROWS)
    steps = run.steps()
    for x, y in (first := next(steps)):
        first.backward(loss_of(model, x, y))
    model.bias.requires_grad_(True)
    with pytest.raises(ModelError, match=r"bias did not require a gradient when run\.steps\(\) began, but does now"):
        list(next(steps))


@pytest.mark.parametrize("policy", ["deliver", "skip", "fail"])
def test_a_gradient_that_is_not_finite(policy: Any) -> None:
    run = AloneRun(on_non_finite=policy)
    model, _ = prepared(run)
    steps = run.steps(steps=2)
    step = next(steps)

    def compute(factor: float) -> None:
        for x, y in step:
            step.backward(loss_of(model, x, y) * factor)

    if policy == "fail":
        with pytest.raises(NonFiniteGradient, match=r"gradient of step 0 was not finite.*on_non_finite: fail"):
            compute(math.inf)
        return
    compute(math.inf)
    gradient = next(model.parameters()).grad
    assert (gradient is None) if policy == "skip" else not torch.isfinite(gradient).all()
    assert [notice.kind for notice in run.notices] == ["non_finite"]
    assert ("skipped" if policy == "skip" else "delivered as it is") in run.notices[0].message
    step = next(steps)
    compute(1.0)
    assert len(run.notices) == 1
    assert next(model.parameters()).grad is not None


def test_logged_values_are_in_the_row_of_their_step() -> None:
    run = AloneRun()

    def log(step: Any) -> None:
        if step.index == 1:
            run.log(accuracy=torch.tensor(0.5, requires_grad=True), extra=3)
            run.log(extra=4, missing=math.nan)

    train(run, log)
    run.log(final=1.0)
    run.finish()
    assert [row.values.get("accuracy") for row in run.rows] == [None, 0.5, None]
    assert [row.values.get("extra") for row in run.rows] == [None, 4.0, None]
    assert [row.values.get("final") for row in run.rows] == [None, None, 1.0]
    assert all("missing" not in row.values for row in run.rows)


def test_a_scaler_scales() -> None:
    run = AloneRun()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, optimizer = prepared(run, scaler=scaler)
    for step in run.steps(steps=1):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        scaled = next(model.parameters()).grad
        assert scaled is not None
        norm = float(scaled.norm())
        scaler.unscale_(optimizer)
        assert float(scaled.norm()) == pytest.approx(norm / 8)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("is_unscaled_first", [False, True])
def test_a_scaler_skips_the_whole_step_where_that_is_asked(*, is_unscaled_first: bool) -> None:
    """Of two optimizers only the first has a gradient that is not finite; neither steps, and the scale falls."""
    run = AloneRun(on_non_finite="skip")
    models = {name: nn.Linear(3, 1, bias=False) for name in ("hit", "other")}
    optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.01) for name, one in models.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    run.prepare(model=models, optimizer=optimizers, scaler=scaler, dataset=ROWS)
    weights, scales = [], []
    for step in run.steps(steps=3):
        for x, y in step:
            factor = math.inf if step.index == 1 else 1.0
            step.backward(loss_of(models["hit"], x, y) * factor + loss_of(models["other"], x, y))
        for name, optimizer in optimizers.items():
            if is_unscaled_first:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(models[name].parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()
        weights.append([one.weight.detach().clone() for one in models.values()])
        scales.append(scaler.get_scale())
    assert scales == [8.0, 4.0, 4.0]
    assert [torch.equal(*pair) for pair in zip(weights[0], weights[1], strict=True)] == [True, True]
    assert [torch.equal(*pair) for pair in zip(weights[1], weights[2], strict=True)] == [False, False]
    assert ["skipped" in notice.message for notice in run.notices] == [True]


def test_gradients_that_are_never_finite_are_told_now_and_then() -> None:
    run = AloneRun(on_non_finite="skip")
    model, optimizer = prepared(run)
    for step in run.steps(steps=12):
        for x, y in step:
            step.backward(loss_of(model, x, y) * (1.0 if step.index == 9 else math.inf))
        optimizer.step()
    assert [notice.step for notice in run.notices] == [0, 1, 3, 7, 10, 11]
    assert run.notices[3].message.endswith("it was skipped; so were those of the 7 steps before")


def test_a_scaler_that_is_switched_off_skips_nothing_so_that_the_gradients_are_none() -> None:
    run = AloneRun(on_non_finite="skip")
    model, optimizer = prepared(run, scaler=(scaler := torch.amp.GradScaler("cpu", enabled=False)))
    before = next(model.parameters()).detach().clone()
    for step in run.steps(steps=1):
        for x, y in step:
            step.backward(loss_of(model, x, y) * math.inf)
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(next(model.parameters()), before)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def loop(body: Callable[[Run, nn.Module, Any], object]) -> Callable[[Run], None]:
    """A program that does `body` in each step, and everything else right."""

    def program(run: Run) -> None:
        model, _ = prepared(run)
        for step in run.steps(steps=2):
            body(run, model, step)

    return program


def microbatches(body: Callable[[Run, nn.Module, Any, torch.Tensor, torch.Tensor], object]) -> Callable[[Run], None]:
    def through(run: Run, model: nn.Module, step: Any) -> None:
        for x, y in step:
            body(run, model, step, x, y)

    return loop(through)


def break_off(_: Run, model: nn.Module, step: Any) -> None:
    for x, y in step:
        step.backward(loss_of(model, x, y))
        break


def resume_a_broken_loop(run: Run, model: nn.Module, step: Any) -> None:
    break_off(run, model, step)
    break_off(run, model, step)


def backward_after_the_loop(_: Run, model: nn.Module, step: Any) -> None:
    for x, y in step:
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=True)
    step.backward(loss)


def foreign_optimizer(run: Run) -> None:
    run.prepare(model=nn.Linear(3, 1), optimizer=torch.optim.SGD(nn.Linear(3, 1).parameters()), dataset=ROWS)
    next(run.steps())


def lbfgs(run: Run) -> None:
    model = nn.Linear(3, 1)
    run.prepare(model=model, optimizer=torch.optim.LBFGS(model.parameters()), dataset=ROWS)
    next(run.steps())


def complex_parameters(run: Run) -> None:
    model = nn.Linear(3, 1, dtype=torch.complex64)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=ROWS)
    next(run.steps())


def prepare_with(**wrong: Any) -> Callable[[Run], None]:
    def program(run: Run) -> None:
        model = nn.Linear(3, 1)
        right = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "dataset": ROWS}
        run.prepare(**(right | wrong))

    return program


def prepare_in_another_order(run: Run) -> None:
    model = nn.Linear(3, 1)
    run.prepare(torch.optim.SGD(model.parameters()), model, ROWS)  # type: ignore[arg-type]


def prepare_twice(run: Run) -> None:
    prepared(run)
    prepared(run)


def steps_twice(run: Run) -> None:
    train(run)
    next(run.steps())


def register_late(run: Run) -> None:
    train(run, lambda _: run.register("average", nn.Linear(1, 1)))


def register_twice(run: Run) -> None:
    prepared(run, scheduler=nn.Linear(1, 1))
    run.register("scheduler", nn.Linear(1, 1))


def unsavable_state(run: Run) -> None:
    run.state["logger"] = object()
    train(run)


def update_inside(run: Run) -> None:
    model, optimizer = prepared(run)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward(loss_of(model, x, y))
            optimizer.step()


def schedule_inside(run: Run) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS, scheduler=scheduler)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward(loss_of(model, x, y))
            if step.index == 1:  # torch itself warns of one that comes before all updates
                scheduler.step()
        optimizer.step()


def return_early(run: Run) -> None:
    model, _ = prepared(run)
    for step in run.steps(steps=3):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        if step.index == 1:
            return


MISTAKES: dict[str, tuple[Callable[[Run], object], str]] = {
    "break": (loop(break_off), r"step 0 ended before its microbatches were exhausted.*without break"),
    "empty body": (loop(lambda *_: None), r"step 0 ended before its microbatches were exhausted: go through all"),
    "list": (loop(lambda run, model, step: list(step)), r"microbatch 0 of step 0 left no gradient: call step.backward"),
    "second loop": (loop(resume_a_broken_loop), r"can be gone through once.*without break"),
    "no backward": (microbatches(lambda *_: None), r"microbatch 0 of step 0 left no gradient"),
    "backward outside": (loop(backward_after_the_loop), r"belongs into the loop.*for batch in step"),
    "update inside": (update_inside, r"step\(\) of SGD was called inside of the loop.*move it behind that loop"),
    "schedule inside": (schedule_inside, r"step\(\) of StepLR was called inside of the loop.*behind that loop"),
    "vector loss": (
        microbatches(lambda run, model, step, x, y: step.backward(model(x))),
        r"as a scalar tensor, not one of shape \(2, 1\)",
    ),
    "number loss": (microbatches(lambda run, model, step, x, y: step.backward(1.0)), "scalar tensor, not one, float"),
    "negative weight": (
        microbatches(lambda run, model, step, x, y: step.backward(loss_of(model, x, y), weight=-1)),
        "weight of at least 0, got -1",
    ),
    "evaluate inside": (
        microbatches(lambda run, *_: run.evaluate(ROWS, lambda x, y: 1.0)),
        "after the loop over the step's microbatches, not inside",
    ),
    "evaluate before": (lambda run: run.evaluate(ROWS, lambda x, y: 1.0), r"into or after the loop over run.steps"),
    "log without measure": (
        loop(lambda run, *_: run.log(**{f"norm_{number}": 1.0 for number in range(1_001)})),
        r"1001 names in one step, and a row holds 1000",
    ),
    "log text": (loop(lambda run, *_: run.log(accuracy="good")), r"run.log\(accuracy=...\) needs a number, got 'good'"),
    "log vector": (loop(lambda run, *_: run.log(a=torch.ones(2))), "needs a number, got tensor"),
    "no prepare": (lambda run: next(run.steps()), r"call run.prepare\(.*\) before run.steps"),
    "prepare in another order": (prepare_in_another_order, "^model is a SGD, not a torch.nn.Module"),
    "prepare twice": (prepare_twice, "called twice.*as dicts"),
    "steps twice": (steps_twice, "called twice; a job has one loop"),
    "register late": (register_late, r"'average'\) came after run.steps\(\) began; register before"),
    "register twice": (register_twice, "'scheduler' is registered already; choose another name"),
    "register nothing": (lambda run: run.register("x", object()), r"'x' \(object\) has no state_dict"),
    "foreign optimizer": (foreign_optimizer, "not of the prepared model: build it from"),
    "lbfgs": (lbfgs, "LBFGS.*use another"),
    "complex": (complex_parameters, "weight is complex.*view_as_real"),
    "no module": (prepare_with(model=len), "not a torch.nn.Module"),
    "no optimizer": (prepare_with(optimizer=nn.Linear(1, 1)), "is a Linear, not a torch.optim.Optimizer"),
    "empty dataset": (prepare_with(dataset=[]), "has no samples"),
    "loader": (prepare_with(dataset=torch.utils.data.DataLoader(ROWS)), "not a DataLoader"),  # type: ignore[arg-type]
    "unsavable": (unsavable_state, "logger.*run.state"),
    "early return": (return_early, r"returned in step 1; go through run.steps\(\) to its end"),
    "no steps": (prepared, r"returned before run.steps\(\) was called"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_advice(name: str) -> None:
    program, advice = MISTAKES[name]

    def launch() -> None:
        run = AloneRun()
        program(run)
        run.finish()

    with pytest.raises(ModelError, match=advice):
        launch()


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(
    ("here", "device", "is_told"),
    [
        (["cpu"], "cpu", False),
        (["cpu"], "meta", True),
        (["meta"], "cpu", True),  # never filled in
        (["cpu", "cpu"], "meta", True),
        (["cpu", "meta"], "meta", False),  # split over devices, or with a part that stays on the CPU
        ([], "meta", False),  # that there is nothing to train is told by the steps
    ],
)
def test_a_model_that_lies_elsewhere_is_told(here: list[str], device: str, is_told: bool, is_named: bool) -> None:
    run = AloneRun()
    run.device = torch.device(device)  # as where a job asks for a GPU
    parts = {f"part_{index}": nn.Linear(3, 1, device=one) for index, one in enumerate(here)}
    optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.01)
    where = f"come on {device}, .* on {here[0]}: .* model.to.run.device. before" if is_told else ""
    with pytest.raises(ModelError, match=where) if is_told else contextlib.nullcontext():
        run.prepare(model=parts if is_named else nn.ModuleDict(parts), optimizer=optimizer, dataset=ROWS)


def test_a_plain_backward_is_told_once_and_gives_the_same_gradients() -> None:
    weights = []
    for is_plain in (False, True):
        torch.manual_seed(0)
        run = AloneRun()
        model, optimizer = prepared(run)
        for step in run.steps(steps=2):
            for x, y in step:
                loss = loss_of(model, x, y)
                loss.backward() if is_plain else step.backward(loss)
            optimizer.step()
        told = [one.message for one in run.notices if one.kind == EventKind.LOSS_MISSING]
        assert len(told) == is_plain
        assert all("call step.backward(loss)" in message for message in told)
        weights.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert torch.equal(*weights)


def test_long_phases_are_told() -> None:
    run = AloneRun()
    with run.long_phase("export"):
        assert run.hearing.present_stage == "long_phase"
    assert run.hearing.present_stage == "setup"
