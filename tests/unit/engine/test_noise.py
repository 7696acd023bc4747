"""The noise scale is what each microbatch's own gradient says, and rates are multiplied while optimizers step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun, loss_of, own_generators, prepared
from torch import nn

from rubato.engine.flat import FlatLayout
from rubato.engine.noise import LearningRate, NoiseWatch
from rubato.errors import SpecError
from rubato.strategies.batch_rules import Noise, keep_of
from rubato.wire.batch import BatchSpec, LrScalingSpec
from rubato.wire.spec import JobSpec, parse_spec

SIZE, PIECES = 8, 4


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with own_generators():
        yield


def go(run: AloneRun, steps: int, update: Callable[[torch.optim.Optimizer], Any] = lambda one: one.step()) -> nn.Module:
    """Train, and keep what each microbatch's gradient is. The row of a last step would wait for the end: one more."""
    model, optimizer = prepared(run)
    run.state["seen"] = 0
    seen.clear()
    for step in run.steps(steps=steps + 1):
        parts = []
        for x, y in step:
            loss = loss_of(model, x, y)
            parts.append((len(x), torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)))
            step.backward(loss)
        seen.append((parts, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]))
        update(optimizer)
    return model


seen: list[Any] = []


def square(gradients: Any) -> float:
    return sum(float(one.double().square().sum()) for one in gradients)


def test_it_is_what_the_microbatches_say() -> None:
    run = AloneRun(noise_every=1)
    go(run, 5)
    expected = Noise()
    for row, (parts, mean) in zip(run.rows, seen[:-1], strict=True):
        samples = sum(size for size, _ in parts)
        small = len(parts) / sum(1 / size for size, _ in parts)
        squares = [square(gradients) for _, gradients in parts]
        expected = expected.after(squares, square(mean), small, samples, keep=keep_of(samples, SIZE))
        if expected.scale is None:
            assert "noise_scale" not in row.values
        else:
            assert row.values["noise_scale"] == pytest.approx(expected.scale, rel=1e-3)
    assert expected.scale is not None
    assert any(len(parts) < PIECES for parts, _ in seen), "the last step of an epoch has fewer samples"


def test_it_is_measured_in_some_steps_only() -> None:
    run = AloneRun(noise_every=2)
    go(run, 5)
    assert ["noise_scale" in row.values for row in run.rows] == [True, False, True, False, True]
    assert not any("noise_scale" in row.values for row in rows_of(AloneRun()))


def rows_of(run: AloneRun) -> Any:
    go(run, 3)
    return run.rows


def test_a_scale_of_the_loss_changes_nothing() -> None:
    plain, scaled = AloneRun(noise_every=1), AloneRun(noise_every=1)
    go(plain, 3)
    with own_generators():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaled.prepare(model=model, optimizer=optimizer, dataset=ROWS, scaler=scaler)
        for step in scaled.steps(steps=4):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            scaler.step(optimizer)
            scaler.update()
    found = [[row.values.get("noise_scale") for row in run.rows] for run in (plain, scaled)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert scaled._noise is not None
    assert plain._noise is not None
    assert scaled._noise.noise.variance == pytest.approx(plain._noise.noise.variance, rel=1e-4)


def test_gradients_that_are_not_finite_say_nothing() -> None:
    run = AloneRun(noise_every=1)
    model, optimizer = prepared(run)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward(loss_of(model, x, y) * (float("inf") if step.index == 1 else 1.0))
        optimizer.step()
        assert run._noise is not None
        if step.index == 0:
            known = run._noise.noise
    assert run._noise.noise == known
    assert known.weight > 0


def test_a_norm_that_is_beyond_the_vectors_type_says_nothing() -> None:
    run = AloneRun(noise_every=1)
    model, optimizer = prepared(run)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward(loss_of(model, x, y) * (1e25 if step.index == 1 else 1.0))
        optimizer.zero_grad()
        assert run._noise is not None
        if step.index == 0:
            known = run._noise.noise
    assert run._noise.noise == known


def test_one_microbatch_says_nothing_whatever_it_weighs() -> None:
    for samples in range(1, 32):
        run = AloneRun(batch=32, num_microbatches=1, noise_every=1)
        model, optimizer = nn.Linear(3, 1), None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        rows = [ROWS[index % len(ROWS)] for index in range(samples)]
        run.prepare(model=model, optimizer=optimizer, dataset=rows)
        for step in run.steps(steps=1):
            for x, y in step:
                step.backward(loss_of(model, x, y), weight=0.7 * samples)
        assert run._noise is not None
        assert run._noise.noise == Noise(), samples


@pytest.mark.parametrize("weight", [1.0, 50.0])
def test_it_is_in_samples_whatever_a_program_weighs_by(weight: float) -> None:
    found = []
    for factor in (None, weight):
        run = AloneRun(noise_every=1)
        with own_generators():
            model, optimizer = prepared(run)
            for step in run.steps(steps=3):
                for x, y in step:
                    step.backward(loss_of(model, x, y), weight=None if factor is None else factor * len(x))
                optimizer.step()
        found.append([row.values.get("noise_scale") for row in run.rows])
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_gradients_of_sixteen_bits_are_squared_in_the_vectors_type() -> None:
    flat = FlatLayout([("a", nn.Parameter(torch.zeros(4, dtype=torch.float16)))], [], has_notes=True)
    flat.takes_notes = True
    flat.parameters[0][1].grad = torch.full((4,), 60_000.0, dtype=torch.float16)
    squares, inverse, passes = flat.take_notes(0.5).tolist()
    assert (inverse, passes) == (2.0, 1.0)
    assert squares == pytest.approx(4 * 60_000.0**2, rel=1e-3)


def test_what_is_known_is_a_part_of_the_state() -> None:
    spec = parse_spec({"name": "a", "entrypoint": "a.py", "batch": {"noise_every": 3}})
    one, other = NoiseWatch(spec), NoiseWatch(spec)
    one.noise = Noise(1.5, 2.5, 0.5)
    other.load_state_dict(one.state_dict())
    assert other.noise == one.noise
    assert [one.is_due(step) for step in range(4)] == [True, False, False, True]


# --- the learning rate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_rates_are_multiplied_while_the_optimizer_steps(rule: Any, factor: float) -> None:
    scaling = LrScalingSpec(rule, base_size=2)
    run, by_hand = AloneRun(lr_scaling=scaling), AloneRun()
    found: list[float] = []

    def update(optimizer: torch.optim.Optimizer) -> None:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        found.append(optimizer.param_groups[0]["lr"])

    def update_by_hand(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 * factor
        optimizer.step()

    with own_generators():
        model = go(run, 4, update)
    with own_generators():
        other = go(by_hand, 4, update_by_hand)
    assert set(found) == {0.01}, "the program sees its own"
    assert torch.equal(model.weight, other.weight)  # type: ignore[arg-type]
    assert {row.values["lr_factor"] for row in run.rows} == {factor}
    assert "lr_factor" not in by_hand.rows[0].values


def test_the_factor_grows_over_the_steps_of_the_warmup() -> None:
    run = AloneRun(lr_scaling=LrScalingSpec("linear", base_size=2, warmup_steps=3))
    go(run, 5)
    assert [row.values["lr_factor"] for row in run.rows] == pytest.approx([1.0, 2.0, 3.0, 4.0, 4.0])


def test_hooks_of_the_program_see_its_own_rates_and_may_change_them() -> None:
    run = AloneRun(lr_scaling=LrScalingSpec("linear", base_size=2))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found: list[float] = []

    def halve(one: torch.optim.Optimizer, *_: Any) -> None:
        found.append(one.param_groups[0]["lr"])
        one.param_groups[0]["lr"] /= 2

    optimizer.register_step_post_hook(halve)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    for step in run.steps(steps=3):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
    assert found == [0.01, 0.005, 0.0025]


def test_adascale_goes_by_the_noise() -> None:
    """Of B = 8 and B0 = 2: (v / 2 + g) / (v / 8 + g) is (n / 2 + 1) / (n / 8 + 1) with the noise scale n = v / g."""
    run = AloneRun(noise_every=1, lr_scaling=LrScalingSpec("adascale", base_size=2))
    go(run, 6)
    factors = [row.values["lr_factor"] for row in run.rows]
    for factor, noise in zip(factors, (row.values.get("noise_scale") for row in run.rows), strict=True):
        assert factor == pytest.approx(4.0 if noise is None else (noise / 2 + 1) / (noise / 8 + 1))
    assert sum(1.0 < factor < 4.0 for factor in factors) > 2


def rate(rule: Any, base_size: int, warmup_steps: int, step: int) -> LearningRate:
    """Of a batch of 400, before its first step of these terms."""
    scaling = LrScalingSpec(rule, base_size, warmup_steps)
    spec = JobSpec(name="a", entrypoint="a.py:train", batch=BatchSpec(400), lr_scaling=scaling)
    return LearningRate(spec, None, lambda: step)


def factors(one: LearningRate, *steps: int) -> list[float]:
    return [one.factor(step) for step in steps]


def test_a_warmup_begins_where_the_rule_does() -> None:
    late = rate("linear", 100, 500, step=5_000)
    late.begin()
    assert factors(late, 5_000, 5_250, 5_500, 9_000) == [1.0, 2.5, 4.0, 4.0]


def test_who_goes_on_by_the_same_rule_begins_no_second_warmup() -> None:
    saved, other = rate("linear", 100, 500, step=5_250), rate("linear", 100, 500, step=5_250)
    saved._since = 5_000
    other.load_state_dict(saved.state_dict())
    other.begin()
    assert factors(other, 5_250, 5_375, 5_500) == factors(saved, 5_250, 5_375, 5_500) == [2.5, 3.25, 4.0]
    assert other.state_dict() == saved.state_dict()


@pytest.mark.parametrize("terms", [("sqrt", 25, 100), ("linear", 200, 100), ("linear", 100, 100)])
def test_another_rule_begins_from_the_factor_that_was(terms: tuple[str, int, int]) -> None:
    saved, other = rate("linear", 100, 500, step=5_250), rate(*terms, step=5_250)
    saved._since = 5_000
    other.load_state_dict(saved.state_dict())
    other.begin()
    after = other.factor(9_000)
    assert after == {"sqrt": 4.0, "linear": 400 / terms[1]}[terms[0]]
    assert factors(other, 5_250, 5_300, 5_350) == [2.5, (2.5 + after) / 2, after]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"lr_scaling": {"rule": "linear"}},
            "lr_scaling.base_size: is the batch that the learning rate was chosen for",
        ),
        ({"lr_scaling": {"base_size": 8}}, "give it with a rule, and only then"),
        ({"lr_scaling": {"rule": "linear", "base_size": 0}}, "lr_scaling.base_size: must lie in 1.."),
        ({"lr_scaling": {"rule": "sqrt", "base_size": 8, "warmup_steps": -1}}, "warmup_steps: must lie in 0.."),
        (
            {"lr_scaling": {"rule": "adascale", "base_size": 8}},
            "adascale goes by the noise of the gradients: give batch",
        ),
        (
            {
                "reproducible": False,
                "batch": {"noise_every": 1},
                "aggregation": {"compression": {"method": "topk"}},
            },
            "topk changes the gradient that the noise would be compared with; leave it out",
        ),
        ({"batch": {"noise_every": -1}}, "batch.noise_every: must lie in 0.."),
        (
            {"backend": "ray_train", "lr_scaling": {"rule": "linear", "base_size": 8}},
            "the program sets its own learning rate",
        ),
        ({"backend": "ray_train", "batch": {"noise_every": 1}}, "Ray Train has the gradients; leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"name": "a", "entrypoint": "a.py", **fields})
    assert sentence in str(caught.value)
