"""Microbatches that train by themselves, against rounds written out by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import AloneRun, loss_of
from torch import nn

from rubato.data.order import RoundPlan
from rubato.engine.flat import BUCKET_BYTES, FlatLayout
from rubato.engine.replicas import Replicas, places_of, replicas_of
from rubato.engine.state import TrainingState
from rubato.engine.upcoming import upcoming
from rubato.errors import ModelError, NonFiniteGradient
from rubato.wire.local_updates import LocalUpdatesSpec, OuterSpec
from rubato.wire.spec import BatchSpec, JobSpec, WorkersSpec

pytestmark = pytest.mark.usefixtures("generators")

ROWS = [
    (torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(float(index % 3)))
    for index in range(44)
]
"""Three rounds of 16 samples an epoch, the last of 12: one replica has two updates fewer then."""
DILOCO = LocalUpdatesSpec("diloco", 4, OuterSpec(0.7, 0.9))
LOCAL_SGD = LocalUpdatesSpec("local_sgd", 4)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "AMSGrad": lambda parameters: torch.optim.Adam(parameters, lr=0.05, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.1),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.05),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1),
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
}


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(run: AloneRun, optimizer: str = "AdamW", look: Callable[[nn.Module], None] = lambda _: None) -> nn.Module:
    model = model_of()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    run.prepare(model=model, optimizer=stepper, dataset=ROWS)
    for step in run.steps(epochs=2):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        stepper.step()
        look(model)
    return model


def by_hand(optimizer: str, spec: LocalUpdatesSpec, seed: int, batch: int = 16, count: int = 2) -> nn.Module:
    """The same, in double precision: each of so many replicas with a model and an optimizer of its own."""
    plan = RoundPlan(len(ROWS), batch, count, seed, spec.sync_every)
    model = model_of().double()
    names = list(dict(model.named_parameters()))
    kept: list[dict[str, torch.Tensor]] | None = None
    momentum = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for step in range(2 * plan.steps_per_epoch):
        replicas, sizes = [], []
        for v, size in enumerate(plan.sizes(step)):
            if not size:
                continue
            one = copy.deepcopy(model)
            stepper = OPTIMIZERS[optimizer](one.parameters())
            if kept is not None:
                for parameter, state in zip(one.parameters(), kept, strict=True):
                    stepper.state[parameter] = {key: value.clone() for key, value in state.items()}
            for part in plan.parts(step, range(v, v + 1)):
                rows = [ROWS[index] for index in plan.pieces.samples(step, part.start)]
                x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
                stepper.zero_grad()
                loss_of(one, x.double(), y.double()).backward()  # type: ignore[no-untyped-call]
                stepper.step()
            replicas.append((one, stepper))
            sizes.append(size / plan.batch_size(step))
        with torch.no_grad():
            kept = []
            for index, (name, parameter) in enumerate(model.named_parameters()):
                own = [list(one.parameters())[index] for one, _ in replicas]
                mean = sum(share * (parameter - mine) for share, mine in zip(sizes, own, strict=True))
                assert isinstance(mean, torch.Tensor)
                if spec.method == "local_sgd":
                    parameter.copy_(sum(share * mine for share, mine in zip(sizes, own, strict=True)))
                else:
                    momentum[name] = spec.outer.momentum * momentum[name] + mean
                    parameter -= spec.outer.lr * (mean + spec.outer.momentum * momentum[name])
                states = [stepper.state[mine] for (_, stepper), mine in zip(replicas, own, strict=True)]
                kept.append(
                    {
                        key: sum(share * state[key] for share, state in zip(sizes, states, strict=True))
                        for key in states[0]
                        if states[0][key] is not None
                    }
                )
            for name, buffer in model.named_buffers():
                mine = [dict(one.named_buffers())[name] for one, _ in replicas]
                weighted = sum(share * one for share, one in zip(sizes, mine, strict=True))
                buffer.copy_(weighted if buffer.is_floating_point() else mine[0])
    assert names
    return model


@pytest.mark.parametrize("spec", [DILOCO, LOCAL_SGD], ids=lambda spec: spec.method)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_round_is_what_it_is_by_hand(optimizer: str, spec: LocalUpdatesSpec) -> None:
    run = AloneRun(batch=16, num_microbatches=2, local_updates=spec)
    model = train(run, optimizer)
    expected = by_hand(optimizer, spec, run.session.spec.seed)
    for (name, one), other in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(
            one.double(), other.double(), rtol=2e-4, atol=2e-5, msg=name.join(("", ": {}")).format
        )


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("optimizer", ["plain", "AdamW"])
def test_of_one_update_and_an_outer_rate_of_1_diloco_is_the_mean_of_the_replicas_weights(
    optimizer: str, replicas: int
) -> None:
    """As local SGD of one update; the rounds end an epoch with fewer samples, and some replicas without any."""
    for spec in (LocalUpdatesSpec("diloco", 1, OuterSpec(1.0, 0.0)), LocalUpdatesSpec("local_sgd", 1)):
        run = AloneRun(batch=4 * replicas, num_microbatches=replicas, local_updates=spec)
        model = train(run, optimizer)
        mean = by_hand(optimizer, LocalUpdatesSpec("local_sgd", 1), run.session.spec.seed, 4 * replicas, replicas)
        for (name, one), other in zip(model.state_dict().items(), mean.state_dict().values(), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=2e-4, atol=2e-5, msg=name)


def test_one_update_by_one_replica_is_a_step_without_them() -> None:
    """Local SGD of one microbatch and one update a round."""
    plain = train(AloneRun(batch=16, num_microbatches=1), "plain")
    local = train(AloneRun(batch=16, num_microbatches=1, local_updates=LocalUpdatesSpec("local_sgd")), "plain")
    for one, other in zip(local.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_rows_tell_the_mean_loss_and_all_samples() -> None:
    run = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO)
    train(run)
    run.finish()
    assert [row.values["samples"] for row in run.rows] == [16, 16, 12, 16, 16, 12]
    losses = [row.values["loss"] for row in run.rows]
    assert losses[-1] < losses[0]


def test_all_samples_are_read_once_an_epoch() -> None:
    plan = RoundPlan(len(ROWS), 16, 2, 7, 4)
    read = [
        index
        for step in range(plan.steps_per_epoch)
        for v in range(2)
        for part in plan.parts(step, range(v, v + 1))
        for index in plan.pieces.samples(step, part.start, len(part))
    ]
    assert sorted(read) == list(range(len(ROWS)))
    assert [plan.sizes(step) for step in range(3)] == [(8, 8), (8, 8), (8, 4)]
    both = [plan.part_size(0, part) for part in plan.parts(0, range(2))]
    assert both == [4, 4, 4, 4], "two replicas in one pass: as many updates, of twice the samples"
    with pytest.raises(ValueError, match="16 samples are not 2 times 3 pieces"):
        RoundPlan(len(ROWS), 16, 2, 7, 3)


def test_a_frozen_and_an_untouched_parameter_stay_as_they_are() -> None:
    run = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO)
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "frozen": nn.Linear(3, 1), "unused": nn.Linear(3, 1)})
    model["frozen"].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.NAdam(model.parameters(), weight_decay=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    for step in run.steps():
        for x, y in step:
            step.backward(loss_of(model["used"], x, y))
        optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"used.weight", "used.bias"}
    assert set(optimizer.state) == set(model["used"].parameters()), "what was never updated has no state"


def spoilt(run: AloneRun, step_of: int = 1, piece: int = 1) -> nn.Module:
    """One piece of a round has a loss that is not finite."""
    model, seen = model_of(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    for step in run.steps():
        for x, y in step:
            seen += step.index == step_of
            factor = float("inf") if step.index == step_of and seen == piece + 1 else 1.0
            step.backward(loss_of(model, x, y) * factor)
        optimizer.step()
    return model


def test_an_update_that_is_not_finite_is_left_out_or_fails_the_job() -> None:
    model = spoilt(AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO, on_non_finite="skip"))
    assert all(torch.isfinite(one).all() for one in model.state_dict().values())
    with pytest.raises(NonFiniteGradient):
        spoilt(AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO, on_non_finite="fail"))
    model = spoilt(AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO))
    assert not all(torch.isfinite(one).all() for one in model.parameters())


def test_what_cannot_be_averaged_is_refused() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for one in group["params"]:
                    self.state[one]["count"] = self.state[one].get("count", 0) + 1
            return super().step(closure)

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("it needs a closure")

    model = nn.Linear(3, 1)

    class Numbering(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
            return super().step(closure)

    class Elsewhere(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state["total"]["count"] = torch.zeros(1)
            return super().step(closure)

    for optimizer, message in (
        (Numbering, "Numbering keeps 'count' among its options"),
        (Elsewhere, "belongs to no parameter"),
        (Counting, r"count of weight is no plain tensor \(int\)"),
        (Failing, "it needs a closure"),
    ):
        state = TrainingState({"": model}, {"": optimizer(model.parameters(), lr=0.1)}, {}, {})
        with pytest.raises(ModelError, match=message):
            list(places_of(state))
    run = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS, scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ModelError, match="no GradScaler sees the updates"):
        next(run.steps())


def test_looking_at_an_optimizer_leaves_no_trace() -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    before = copy.deepcopy(model.state_dict())
    assert [place.key for place in places_of(TrainingState({"": model}, {"": optimizer}, {}, {}))][:3] == [
        "step",
        "exp_avg",
        "exp_avg_sq",
    ]
    assert not optimizer.state
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def go_through(run: AloneRun, model: nn.Module, without: int | None = None) -> None:
    """All steps; one batch of each may be left out."""
    for step in run.steps():
        for at, (x, y) in enumerate(step):
            if at != without:
                step.backward(loss_of(model, x, y))


class Late(torch.optim.SGD):
    """Keeps something from its third update on."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                state["count"] = state.get("count", torch.zeros(())) + 1
                if state["count"] == 3:
                    state["slow"] = one.detach().clone()
        return super().step(closure)


def test_what_is_kept_later_or_changed_by_a_hook_fails_with_its_name() -> None:
    model = nn.Linear(3, 1)
    late = Late(model.parameters(), lr=0.1)
    run = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO)
    run.prepare(model=model, optimizer=late, dataset=ROWS)
    with pytest.raises(ModelError, match="Late keeps 'slow' by now"):
        go_through(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    run = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=ROWS)
    with pytest.raises(ModelError, match="SGD has changed its option lr in its updates"):
        go_through(run, model)


def test_squares_of_gradients_stay_above_zero_when_they_shrink_by_orders_of_magnitude() -> None:
    """As a mean of changes they would be less than zero by the rounding of what they were."""
    rows = [(torch.tensor(index), torch.tensor(float(index % 2))) for index in range(7 * 60)]
    model = nn.Sequential(nn.Embedding(1, 5), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.5, 0.7))
    local = LocalUpdatesSpec("diloco", 60)
    run = AloneRun(batch=7 * 60, num_microbatches=7, local_updates=local)
    run.prepare(model=model, optimizer=optimizer, dataset=rows)
    for step in run.steps(epochs=3):
        for x, y in step:
            factor = 1e4 if step.index == 0 else 1e-8
            step.backward((model(x * 0).squeeze(1) * factor - y * 0).square().mean())
        optimizer.step()
    assert all((state["exp_avg_sq"] >= 0).all() for state in optimizer.state.values())
    assert all(torch.isfinite(one).all() for one in model.parameters())


def test_a_piece_of_no_weight_makes_no_update() -> None:
    """Padding only, whose loss is not a number."""
    ends = []
    for with_padding in (False, True):
        torch.manual_seed(0)
        run, model = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO), nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
        for step in run.steps():
            for at, (x, y) in enumerate(step):
                if with_padding and at == 1:
                    step.backward(loss_of(model, x, y) * float("nan"), weight=0.0)
                else:
                    step.backward(loss_of(model, x, y))
            optimizer.step()
        run.finish()
        assert all(math.isfinite(row.values["loss"]) for row in run.rows)
        ends.append([one.detach().clone() for one in model.parameters()])
    assert all(torch.isfinite(one).all() for one in ends[1])
    assert not torch.equal(ends[0][0], ends[1][0])


def test_a_piece_without_a_gradient_is_told() -> None:
    run, model = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO), nn.Linear(3, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=ROWS)
    with pytest.raises(ModelError, match="a batch left no gradient"):
        go_through(run, model, without=2)


def test_an_update_by_the_program_is_told() -> None:
    run, model = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    step = next(run.steps())
    x, y = next(iter(step))
    step.backward(loss_of(model, x, y))
    with pytest.raises(ModelError, match="called inside of the loop"):
        optimizer.step()


def test_autocast_around_the_loop_sees_the_weights_of_now() -> None:
    losses = []
    for outside in (True, False):
        torch.manual_seed(0)
        run, model = AloneRun(batch=16, num_microbatches=1, local_updates=LOCAL_SGD), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
        seen: list[float] = []
        for step in run.steps(steps=1):
            with torch.autocast("cpu", torch.bfloat16, enabled=outside):
                for x, y in step:
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_of(model, x, y)
                    step.backward(loss)
                    seen.append(float(loss.detach()))
        losses.append(seen)
    assert losses[0] == losses[1]


def test_what_optimizers_keep_is_exchanged_in_buckets_of_the_usual_size() -> None:
    model = nn.Linear(2048, 2048)
    state = TrainingState({"": model}, {"": torch.optim.AdamW(model.parameters())}, {}, {})
    flat = FlatLayout(state.named_parameters(), list(places_of(state)))
    assert sum(one.end - one.begin for one in flat.buckets) == flat.length
    assert max(one.end - one.begin for one in flat.buckets) * 4 <= BUCKET_BYTES
    plain = FlatLayout(state.named_parameters(), [])
    assert [one for one in flat.buckets if one.parameters] == [one for one in plain.buckets if one.parameters]


def test_reading_ahead_begins_at_the_piece_in_work() -> None:
    run, model = AloneRun(batch=16, num_microbatches=2, local_updates=DILOCO), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    seen = []
    for step in run.steps(steps=2):
        for x, y in step:
            seen.append(next(upcoming(run.session)))
            step.backward(loss_of(model, x, y))
        optimizer.step()
    assert seen == [(step, piece, 1) for step in range(2) for piece in range(8)]


def diloco_over(*names: str) -> tuple[TrainingState, Replicas]:
    """Parameters of one shape, in this order."""
    model = nn.Module()
    for name in names:
        model.register_parameter(name, nn.Parameter(torch.zeros(4)))
    spec = JobSpec(
        name="test",
        entrypoint="main.py:train",
        batch=BatchSpec(16, 4),
        workers=WorkersSpec(max=4),
        local_updates=DILOCO,
    )
    state = TrainingState({"": model}, {"": torch.optim.SGD(model.parameters(), lr=0.1)}, {}, {})
    replicas = replicas_of(spec, state, None)
    assert replicas is not None
    return state, replicas


def test_outer_momentum_belongs_to_a_name_in_whichever_order_a_program_has_its_parameters() -> None:
    (saved, one), (other, another) = diloco_over("a", "b"), diloco_over("b", "a")
    for number, value in enumerate(one.state_dict()["momentum"].values()):
        value.fill_(number + 1)
    other.install(*saved.encode())
    assert {name: float(value[0]) for name, value in another.state_dict()["momentum"].items()} == {"a": 1.0, "b": 2.0}
