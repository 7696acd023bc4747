"""`rubato.train`: the loop that people would write, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

import rubato
from rubato.errors import ModelError

COMMON: dict[str, Any] = {
    "model": lambda run: nn.Linear(3, run.config.get("width", 1)),
    "optimizer": lambda run, model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "dataset": ROWS,
    "loss_fn": lambda output, target: (output.squeeze(1) - target).square().mean(),
}


pytestmark = pytest.mark.usefixtures("generators")


def written_out(run: rubato.Run) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = ExponentialLR(optimizer, 0.5)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=ROWS)
    for epoch in run.epochs(3):
        for step in epoch:
            for x, y in step:
                step.backward((model(x).squeeze(1) - y).square().mean())
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        scheduler.step()
        run.log(error=run.evaluate(ROWS, lambda x, y: (model(x).squeeze(1) - y).abs().mean()))


def test_it_has_the_bits_and_rows_of_the_loop_written_out() -> None:
    said = AloneRun()
    rubato.train(
        **COMMON,
        scheduler=lambda run, optimizer: ExponentialLR(optimizer, 0.5),
        scheduler_per="epoch",
        clip_grad_norm=0.1,
        evaluate={"error": rubato.Evaluation(ROWS, lambda output, target: (output.squeeze(1) - target).abs().mean())},
        epochs=3,
    )(said)
    torch.manual_seed(0)
    written = AloneRun()
    written_out(written)
    assert said.finish() == written.finish()
    assert [(row.values["loss"], row.values.get("error")) for row in said.rows] == [
        (row.values["loss"], row.values.get("error")) for row in written.rows
    ]
    assert [row.step for row in said.rows if "error" in row.values] == [3, 6, 9]


def test_a_scheduler_goes_by_steps_unless_asked_otherwise() -> None:
    rates: list[float] = []

    class Watch(rubato.Callback):
        def on_step(self, run: rubato.Run, step: rubato.Step, model: nn.Module) -> None:
            rates.append(schedulers[0].get_last_lr()[0])

    schedulers: list[ExponentialLR] = []

    def schedule(_: rubato.Run, optimizer: torch.optim.Optimizer) -> ExponentialLR:
        schedulers.append(ExponentialLR(optimizer, 0.5))
        return schedulers[0]

    rubato.train(**COMMON, scheduler=schedule, callbacks=[Watch()], steps=3)(AloneRun())
    assert rates == [0.05, 0.025, 0.0125]


def test_callbacks_come_in_their_places() -> None:
    heard: list[tuple[str, int]] = []

    class Heard(rubato.Callback):
        def on_start(self, run: rubato.Run, model: nn.Module) -> None:
            heard.append(("start", run.session.step))

        def on_step(self, run: rubato.Run, step: rubato.Step, model: nn.Module) -> None:
            heard.append(("step", step.index))

        def on_epoch(self, run: rubato.Run, epoch: rubato.Epoch, model: nn.Module) -> None:
            heard.append(("epoch", epoch.index))

        def on_end(self, run: rubato.Run, model: nn.Module) -> None:
            heard.append(("end", run.session.step))

    rubato.train(**COMMON, callbacks=[Heard(), rubato.Callback()], steps=4)(AloneRun())
    assert heard == [
        ("start", 0),
        *[("step", 0), ("step", 1), ("step", 2), ("epoch", 0)],
        *[("step", 3), ("epoch", 1)],
        ("end", 4),
    ]


@pytest.mark.parametrize(("precision", "bits"), [("float32", 32), ("bfloat16", 16), ("float16", 16)])
def test_precision_is_that_of_the_forward_pass(precision: Any, bits: int) -> None:
    outputs: list[torch.Tensor] = []

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        outputs.append(output)
        return (output.squeeze(1).float() - target).square().mean()

    run = AloneRun()
    rubato.train(**(COMMON | {"loss_fn": loss_fn}), precision=precision, clip_grad_norm=1.0, steps=4)(run)
    assert {torch.finfo(one.dtype).bits for one in outputs} == {bits}
    assert run.finish()
    told = [thing for notice in run.notices for thing in notice.data.get("things", [])]
    assert "GradScaler" not in told, "its scaler is registered"


def test_overflows_in_half_precision_are_skipped_also_where_the_spec_says_so() -> None:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.squeeze(1).float() - target).square().mean() * 10.0

    def digest_with(policy: Any) -> str:
        torch.manual_seed(0)
        run = AloneRun(on_non_finite=policy)
        rubato.train(**(COMMON | {"loss_fn": loss_fn}), precision="float16", steps=12)(run)
        assert 0 < sum(notice.kind == "non_finite" for notice in run.notices) < 12
        return run.finish()

    assert digest_with("skip") == digest_with("deliver")


def test_a_dataset_may_be_opened_by_the_run() -> None:
    run = AloneRun(config={"rows": 5})
    rubato.train(**(COMMON | {"dataset": lambda run: ROWS[: run.config["rows"]]}))(run)
    run.finish()
    assert [row.values["samples"] for row in run.rows] == [5.0]


class Pair(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"model": nn.Linear(3, 1)}, r"builds the model, not Linear itself: model=lambda run: .*seeded"),
        ({"model": Pair}, "builds the model, not Pair itself"),
        ({"optimizer": torch.optim.SGD}, "builds the optimizer, not SGD itself: optimizer=lambda run, model"),
        ({"scheduler": 3}, "builds the scheduler, not int itself: scheduler=lambda run, optimizer"),
        ({"scheduler_per": "batch"}, "'step' or 'epoch', got 'batch'"),
        ({"precision": "fp8"}, "'float32', 'bfloat16' or 'float16', got 'fp8'"),
        ({"dataset": [torch.ones(3)] * 4}, r"inputs and a target, not Tensor: .*\(input, target\)"),
    ],
)
def test_a_mistake_is_told_with_advice(wrong: dict[str, Any], advice: str) -> None:
    def launch(make: Callable[..., Any]) -> None:
        make(**(COMMON | wrong))(AloneRun())

    with pytest.raises(ModelError, match=advice):
        launch(rubato.train)
