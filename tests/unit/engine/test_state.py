from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

from rubato.engine.state import TrainingState, digest_of_part
from rubato.errors import CheckpointError, ModelError

Optimizers = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self, width: int = 5, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width, dtype=dtype)
        self.norm = nn.BatchNorm1d(width, dtype=dtype)
        self.head = nn.Linear(width, 3, bias=False, dtype=dtype)
        self.head.weight = nn.Parameter(self.embed.weight.detach().T.clone())
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("passing", torch.full((2,), float("inf")), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("seen").add_(1)
        return self.head(self.norm(self.embed(x)))  # type: ignore[no-any-return]


class Average:
    """Something of the user's own, with a state."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def state_dict(self) -> dict[Any, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.values = dict(state)


@dataclass
class Program:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    average: Average
    state: TrainingState

    def train(self, steps: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        parameter = next(self.model.parameters())
        shape = (6, 3, 5, 5) if parameter.dim() == 4 else (6, 3)
        for step in range(steps):
            self.optimizer.zero_grad()
            x = torch.randn(shape, generator=generator).to(parameter.dtype)
            if parameter.dim() == 4:
                x = x.to(memory_format=torch.channels_last)
            self.model(x).square().mean().backward()
            for each in self.model.parameters():
                assert each.grad is not None
                each.grad = each.grad.contiguous()  # as the engine delivers it
            self.optimizer.step()
            self.scheduler.step()
            self.average.values[step, "mean"] = torch.full((2,), float(step))
            self.state.notes["steps"] = step


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, amsgrad=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


def groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.RMSprop([{"params": rest, "lr": 0.02}, {"params": [first]}], lr=0.01, centered=True)


def program(
    optimizers: Optimizers = adamw,
    scheduler: Callable[[Any], LRScheduler] | None = None,
    model: nn.Module | None = None,
) -> Program:
    model = model or Net()
    optimizer = optimizers(list(model.parameters()))
    plan = (scheduler or (lambda one: CosineAnnealingLR(one, 100)))(optimizer)
    average = Average()
    notes: dict[str, Any] = {}
    registered = {"scheduler": plan, "average": average}
    return Program(model, optimizer, plan, average, TrainingState({"": model}, {"": optimizer}, registered, notes))


def carry(source: TrainingState, target: TrainingState) -> None:
    """As a join or a checkpoint does: the document as text, copies of the tensors."""
    document, tensors = source.encode()
    target.install(
        json.loads(json.dumps(document)), [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
    )


def compared(state: TrainingState) -> int:
    """What members compare."""
    return digest_of_part(*state.encode(), part=0, parts=1)


def content(state: TrainingState) -> tuple[str, list[bytes]]:
    document, tensors = state.encode()
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return json.dumps(document, sort_keys=True), raw


@pytest.mark.filterwarnings("ignore:.*which is a no-op")
def test_tensors_that_have_no_place_of_their_own_go_back_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` is the device: what comes over the wire or from storage lies in the memory of the CPU."""

    def take(self: Any, value: torch.Tensor, path: str) -> dict[str, Any]:
        self.tensors.append(value)
        return {"$": "tensor", "v": len(self.tensors) - 1}

    monkeypatch.setattr("rubato.checkpoint.tree._Encoder._tensor", take)  # it refuses what has no bytes

    def make() -> TrainingState:
        model, average = nn.Linear(3, 2, device="meta"), Average()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        shadow = nn.Linear(3, 2, device="meta")
        return TrainingState({"": model}, {"": optimizer}, {"average": average, "shadow": shadow}, {})

    one, other = make(), make()
    one.notes |= {"there": torch.zeros(4, device="meta"), "here": torch.ones(2), "count": 3}
    one.registered["average"].values = {"mean": torch.zeros(2, device="meta"), "of": torch.ones(1)}
    document, tensors = one.encode()
    assert [tuple(tensors[index].shape) for index in document["on_device"]] == [(2,), (4,)]
    other.install(json.loads(json.dumps(document)), [torch.zeros_like(each, device="cpu") for each in tensors])
    values = {**other.notes, **other.registered["average"].values}
    assert {name: one.device.type for name, one in values.items() if name != "count"} == {
        "there": "meta",
        "here": "cpu",
        "mean": "meta",
        "of": "cpu",
    }
    assert other.encode()[0] == document
    assert "on_device" not in program().state.encode()[0]


@pytest.mark.parametrize("optimizers", [adamw, sgd, groups])
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda one: CosineAnnealingLR(one, 100),
        lambda one: MultiStepLR(one, [2, 4, 4]),
        lambda one: OneCycleLR(one, 0.1, total_steps=100),
    ],
    ids=["cosine", "multistep", "onecycle"],
)
def test_a_carried_state_trains_on_with_the_same_bits(
    optimizers: Optimizers, scheduler: Callable[[Any], LRScheduler]
) -> None:
    one, other = program(optimizers, scheduler), program(optimizers, scheduler)
    one.train(3)
    other.train(1, seed=9)  # a state of its own, to be forgotten
    carry(one.state, other.state)
    assert content(other.state) == content(one.state)
    assert other.state.digest() == one.state.digest()
    assert compared(other.state) == compared(one.state)
    for each in (one, other):
        each.train(3, seed=5)
    assert content(other.state) == content(one.state)
    assert other.average.values.keys() == one.average.values.keys()
    assert other.state.notes == {"steps": 2}


def test_what_was_frozen_or_switched_to_eval_is_so_for_a_joiner_too() -> None:
    one, other = program(model=nn.Sequential(Net(), nn.Dropout())), program(model=nn.Sequential(Net(), nn.Dropout()))
    first = next(one.model.parameters()).requires_grad_(False)
    one.model[1].eval()
    next(iter(reversed(list(other.model.parameters())))).requires_grad_(False)
    carry(one.state, other.state)
    assert [parameter.requires_grad for parameter in other.model.parameters()] == [
        parameter is not first for parameter in one.model.parameters()
    ]
    assert [module.training for module in other.model.modules()] == [module.training for module in one.model.modules()]
    assert not other.model[1].training


def test_a_state_without_a_step_can_be_carried() -> None:
    one, other = program(), program()
    other.train(2)
    carry(one.state, other.state)
    assert content(other.state) == content(one.state)
    assert not other.optimizer.state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    one, other = (program(model=Net(dtype=dtype)) for _ in range(2))
    one.train(2)
    carry(one.state, other.state)
    for each in (one, other):
        each.train(2, seed=5)
    assert content(other.state) == content(one.state)


def test_optimizer_state_finer_than_its_parameter_keeps_its_bits() -> None:
    one, other = (program(sgd, model=nn.Linear(3, 3, dtype=torch.bfloat16)) for _ in range(2))
    one.train(1)
    for state in one.optimizer.state.values():
        state["momentum_buffer"] = torch.randn(state["momentum_buffer"].shape)
    carry(one.state, other.state)
    assert content(other.state) == content(one.state)


@pytest.mark.parametrize(("optimizers", "key"), [(adamw, "exp_avg"), (sgd, "momentum_buffer")])
def test_another_memory_format(optimizers: Optimizers, key: str) -> None:
    """AdamW lays its averages out as the parameter, SGD its momentum as the gradient, which is a flat vector's part."""

    def build() -> Program:
        convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return program(optimizers, model=convolution)

    one, other = build(), build()
    one.train(2)
    carry(one.state, other.state)
    parameter, twin = next(one.model.parameters()), next(other.model.parameters())
    assert other.optimizer.state[twin][key].stride() == one.optimizer.state[parameter][key].stride()
    for each in (one, other):
        each.train(2, seed=5)
    assert content(other.state) == content(one.state)


def test_places_that_hold_one_tensor_for_a_while_are_carried_as_two() -> None:
    def build() -> Program:
        model = nn.Linear(3, 2)
        model.register_buffer("one", torch.ones(2))
        model.register_buffer("other", torch.zeros(2))
        return program(model=model)

    one, other = build(), build()
    one.train(1)
    one.model.other = one.model.one
    carry(one.state, other.state)
    assert content(other.state) == content(one.state)
    other.model.get_buffer("one").add_(1.0)
    assert other.model.get_buffer("other").tolist() == [1.0, 1.0]


class Counting(torch.optim.SGD):
    """Keeps a plain number in its state, which torch's own optimizers do not."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index]
        return super().step(closure)


def test_an_optimizer_may_keep_a_number_of_its_own() -> None:
    one = program(lambda parameters: Counting(parameters, lr=0.01, momentum=0.9))
    one.train(2)
    document, _ = one.state.encode()
    assert document


def test_names_that_would_hide_one_another_are_refused() -> None:
    inner = nn.ModuleDict({"head": nn.Linear(2, 2)})
    with pytest.raises(ModelError, match=r"saved under one name \(net\.head\.bias, net\.head\.weight\)"):
        TrainingState({"net": inner, "net.head": nn.Linear(2, 2)}, {}, {}, {})


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_carried_once_and_stay_tied() -> None:
    one, other = Tied(), Tied()
    states = [TrainingState({"a": net}, {"": sgd(net.parameters())}, {}, {}) for net in (one, other)]
    assert [name for name, _ in states[0].named_parameters()] == ["a.embed.weight"]
    carry(states[0], states[1])
    assert other.head.weight is other.embed.weight
    assert torch.equal(other.head.weight, one.embed.weight)


def test_models_that_share_a_layer_name_it_once() -> None:
    shared = nn.Linear(2, 2)
    models = {"g": nn.Sequential(shared), "d": nn.Sequential(shared, nn.BatchNorm1d(2))}
    parameters = {id(one): one for model in models.values() for one in model.parameters()}
    state = TrainingState(models, {"": sgd(parameters.values())}, {}, {})
    assert [name for name, _ in state.named_parameters()] == ["g.0.weight", "g.0.bias", "d.1.weight", "d.1.bias"]
    assert len(state.named_buffers()) == 3


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (lambda: program(model=Net(width=6)), r"embed.weight is \(5, 3\) torch.float32, the saved one \(6, 3\)"),
        (lambda: program(model=Net(dtype=torch.float64)), "the saved one .* torch.float64"),
        (lambda: program(model=nn.Linear(3, 5)), "state is of another model: parameter .* not in both"),
    ],
)
def test_the_state_of_another_model_is_refused(theirs: Callable[[], Program], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        carry(theirs().state, program().state)


def test_other_registered_things_are_refused() -> None:
    one = program()
    bare = TrainingState({"": one.model}, {"": one.optimizer}, {}, {})
    with pytest.raises(CheckpointError, match=r"saved registered are \['average', 'scheduler'\], the program has \[\]"):
        carry(one.state, bare)
    named = TrainingState({"": one.model}, {"main": one.optimizer}, dict(one.state.registered), {})
    with pytest.raises(CheckpointError, match="saved optimizers"):
        carry(one.state, named)


def test_the_wrong_optimizers_are_refused() -> None:
    model = Net()
    with pytest.raises(ModelError, match=r"LBFGS.*use another"):
        TrainingState({"": model}, {"": torch.optim.LBFGS(model.parameters())}, {}, {})
    with pytest.raises(ModelError, match=r"not of the prepared model: build it from model.parameters\(\)"):
        TrainingState({"": model}, {"": sgd(Net().parameters())}, {}, {})


def test_what_cannot_be_saved_is_named() -> None:
    one = program()
    one.state.notes["logger"] = object()
    with pytest.raises(ModelError, match=r"logger.*run.state"):
        one.state.encode()


def test_every_part_of_the_state_shows_where_members_compare_it() -> None:
    one = program()
    one.train(1)
    seen = {compared(one.state)}

    def differs(change: Callable[[], object]) -> None:
        change()
        digest = compared(one.state)
        assert -(2**63) <= digest < 2**63
        assert digest not in seen
        seen.add(digest)

    differs(lambda: next(one.model.parameters()).data[0].neg_())
    differs(lambda: one.model.get_buffer("seen").add_(1))
    differs(lambda: one.optimizer.state[next(one.model.parameters())]["exp_avg"][0].add_(1))
    differs(lambda: one.scheduler.__dict__.update(last_epoch=7))
    differs(lambda: one.average.values.update(more=1))
    differs(lambda: one.state.notes.update(steps=17))
    differs(lambda: next(one.model.parameters()).requires_grad_(False))
    differs(lambda: one.model.eval())


def test_the_layout_digest_tells_programs_apart() -> None:
    one = program().state.layout_digest(12, "plan")
    assert one == program().state.layout_digest(12, "plan")
    others = [
        program(model=Net(width=6)).state.layout_digest(12, "plan"),
        program(model=Net(dtype=torch.float64)).state.layout_digest(12, "plan"),
        program().state.layout_digest(13, "plan"),
    ]
    assert len({one, *others}) == 4
