"""Layer separation: ranks are threads over real gloo; the oracle is one process that has all layers and all samples."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from alone import AloneRun, loss_of
from groups import gloo_group, on_ranks
from torch import nn

from rubato.engine.comm import Communicator
from rubato.engine.replicas import Replicas
from rubato.engine.separation import Separation, separation_of
from rubato.engine.state import TrainingState
from rubato.errors import ModelError
from rubato.strategies.cut_format import pack, unpack
from rubato.strategies.layer_separation import Roles
from rubato.strategies.sizes import cut
from rubato.wire.local_updates import CutFormat, FrontFormat, LocalUpdatesSpec
from rubato.wire.spec import BatchSpec, JobSpec, WorkersSpec

pytestmark = pytest.mark.usefixtures("generators")

UPDATES = 6
SAMPLES = 7


def spec_of(at: str = "head", packed: CutFormat = "none", front: FrontFormat = "none") -> JobSpec:
    return JobSpec(
        name="test",
        entrypoint="main.py:train",
        batch=BatchSpec(2 * UPDATES, 2),
        workers=WorkersSpec(max=2),
        local_updates=LocalUpdatesSpec("layer_separation", UPDATES, cut=at, cut_format=packed, front_format=front),
        reproducible=False,
    )


def model_of() -> nn.Module:
    torch.manual_seed(1)
    front = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten())
    head = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    return nn.Sequential(OrderedDict(front=front, head=head)).double()


def model_with_statistics() -> nn.Module:
    """Of what went through the layers behind the cut."""
    model = model_of()
    model.get_submodule("head").insert(1, nn.BatchNorm1d(16).double())
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def samples(update: int, count: int = SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(update)
    x = torch.randn(count, 1, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=generator)


class Party:
    """One worker with a model of its own."""

    pause_s = 0.0
    """Before each part of an update."""

    def __init__(
        self, packed: CutFormat = "none", made: Callable[[], nn.Module] = model_of, front: FrontFormat = "none"
    ) -> None:
        self.model = made()
        self.state = TrainingState({"": self.model}, {"": optimizer_of(self.model)}, {}, {})
        self.replicas = Replicas(spec_of(), self.state)
        separation = separation_of(spec_of(packed=packed, front=front), self.state, self.replicas)
        assert separation is not None
        self.separation: Separation = separation
        self.replicas.begin()
        self.separation.begin()

    def follow(self, comm: Communicator, roles: Roles, count: int) -> None:
        separation, place, keeper = self.separation, list(roles.front).index(comm.rank), roles.asks(comm.rank)
        weight = 0.0
        separation.weight = lambda: weight
        with separation.asking(comm, keeper):
            for update in range(UPDATES):
                low, high = cut(count, len(roles.front))[place]
                x, y = samples(update, count)
                loss, weight = None, float(high - low)
                if weight:
                    time.sleep(self.pause_s)
                    found = nn.functional.cross_entropy(self.model(x[low:high]), y[low:high])
                    found.backward()
                    loss = float(found.detach())
                separation.tell_done(comm, keeper, loss, weight)
                separation.update(comm, roles.front, weight)
        separation.wait_updated(comm, keeper)
        if comm.rank == roles.front[-1]:
            separation.tell_front(comm, 0)


def play(parties: Sequence[Party], count: int = SAMPLES, keepers: int = 1) -> list[int]:
    """A round with the first ones as keepers; by rank, the messages that are still held at its end."""
    roles = Roles.led(0, list(range(1, len(parties))), keepers)
    assert len(roles.keepers) == keepers

    def act(rank: int) -> None:
        if rank in roles.keepers:
            parties[rank].separation.keep(group[rank], roles, UPDATES, 0)
        else:
            parties[rank].follow(group[rank], roles, count)

    with gloo_group(len(parties)) as group:
        on_ranks(len(parties), act)
        return [comm.sent for comm in group]


def by_hand(count: int) -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
    model = model_of()
    optimizer, losses = optimizer_of(model), []
    for update in range(UPDATES):
        x, y = samples(update, count)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, optimizer, losses


@pytest.mark.parametrize("count", [SAMPLES, 2], ids=["uneven", "fewer samples than workers"])
@pytest.mark.parametrize(
    ("world", "keepers"),
    [(2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (5, 2), (6, 3), (7, 3)],
    ids=lambda one: str(one),
)
def test_a_round_is_synchronous_descent_over_all_samples(world: int, keepers: int, count: int) -> None:
    parties = [Party() for _ in range(world)]
    sent = play(parties, count, keepers)
    model, optimizer, losses = by_hand(count)
    keeper = parties[0]
    for (name, one), other in zip(keeper.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=name)
    own = keeper.state.optimizers[""].state
    for mine, theirs in zip(keeper.model.parameters(), model.parameters(), strict=True):
        for key, value in optimizer.state[theirs].items():
            torch.testing.assert_close(own[mine][key], value, rtol=1e-9, atol=1e-11, msg=key)
    computed = [parties[0], *parties[keepers:]]
    fronts = [list(party.model.get_submodule("front").parameters()) for party in computed]
    assert all(torch.equal(*pair) for front in fronts[1:] for pair in zip(front, fronts[0], strict=True))
    kept = [list(party.model.get_submodule("head").parameters()) for party in parties[:keepers]]
    assert all(torch.equal(*pair) for back in kept[1:] for pair in zip(back, kept[0], strict=True))
    backs = [list(party.model.get_submodule("head").parameters()) for party in parties[keepers:]]
    untouched = list(model_of().get_submodule("head").parameters())
    assert all(torch.equal(*pair) for back in backs for pair in zip(back, untouched, strict=True))
    assert all("forward" not in vars(party.model.get_submodule("head")) for party in parties)
    told = keeper.separation.told
    if keepers == 1:
        each = len(told) // UPDATES
        updates = [told[at : at + each] for at in range(0, len(told), each)]
        means = [sum((loss or 0.0) * weight for loss, weight in update) / count for update in updates]
        assert means == pytest.approx(losses)
    assert sum(weight for _, weight in told) == count * UPDATES
    assert sum((loss or 0.0) * weight for loss, weight in told) / count == pytest.approx(sum(losses))
    assert keeper.replicas.touched == {name for name, _ in keeper.state.named_parameters()}
    assert max(sent) < 8 * world, "what is known to be received is let go of"


class Travels(torch.autograd.Function):
    """What a tensor and its gradient are behind a cut, in one process."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ahead: CutFormat, back: CutFormat) -> torch.Tensor:
        ctx.back = back
        return unpack(pack(x, ahead), x.shape, x.dtype, ahead)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return unpack(pack(gradient, ctx.back), gradient.shape, gradient.dtype, ctx.back), None, None


@pytest.mark.parametrize("packed", ["bf16", "int8"])
def test_what_goes_over_the_cut_is_rounded_as_told_and_nothing_else_is(packed: CutFormat) -> None:
    parties = [Party(packed) for _ in range(3)]
    play(parties)
    model = model_of()
    optimizer = optimizer_of(model)
    front, head = model.get_submodule("front"), model.get_submodule("head")
    for update in range(UPDATES):
        x, y = samples(update, SAMPLES)
        optimizer.zero_grad()
        for low, high in cut(SAMPLES, 2):  # gradients travel as those of a worker's own mean
            a = Travels.apply(front(x[low:high]), packed, "bf16")  # type: ignore[no-untyped-call]
            z = Travels.apply(head(a), "bf16", "bf16")  # type: ignore[no-untyped-call]
            own = torch.autograd.grad(nn.functional.cross_entropy(z, y[low:high]), list(model.parameters()))
            for one, gradient in zip(model.parameters(), own, strict=True):
                weighted = gradient * ((high - low) / SAMPLES)
                one.grad = weighted if one.grad is None else one.grad + weighted
        optimizer.step()
    for (name, one), other in zip(parties[0].model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize(("world", "keepers"), [(2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (6, 2)], ids=str)
def test_of_the_front_a_rounded_sum_and_change_is_what_all_go_on_with(world: int, keepers: int) -> None:
    parties = [Party(front="bf16") for _ in range(world)]
    play(parties, keepers=keepers)
    keeper, computed, last = parties[0], parties[keepers:], parties[-1]
    fronts = [[one.detach() for one in party.model.get_submodule("front").parameters()] for party in computed]
    assert all(torch.equal(*pair) for front in fronts[1:] for pair in zip(front, fronts[0], strict=True))
    kept = [one.detach() for one in keeper.model.get_submodule("front").parameters()]
    untouched = list(model_of().get_submodule("front").parameters())
    for mine, theirs, before in zip(kept, fronts[0], untouched, strict=True):
        assert torch.equal(mine, before + (theirs - before).bfloat16().double())
        assert not torch.equal(mine, theirs)
    states = [party.state.optimizers[""].state for party in (keeper, last)]
    for pair in zip(
        keeper.model.get_submodule("front").parameters(), last.model.get_submodule("front").parameters(), strict=True
    ):
        mine, theirs = (state[one] for state, one in zip(states, pair, strict=True))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[key]) for key, value in mine.items()), "as it is"
    model, _, _ = by_hand(SAMPLES)
    for one, other, before in zip(keeper.model.parameters(), model.parameters(), model_of().parameters(), strict=True):
        came, expected = (one - before).detach(), (other - before).detach()
        assert float((came - expected).norm()) < float(expected.norm()) / 256
    exact = list(model.get_submodule("front").parameters())
    is_near = all(
        torch.allclose(one, other, rtol=1e-9, atol=1e-11) for one, other in zip(fronts[0], exact, strict=True)
    )
    assert is_near == (len(computed) == 1), "what one worker alone computes is rounded at the end only"


def test_a_loss_that_needs_the_back_itself_is_refused() -> None:
    party = Party()
    next(party.model.get_submodule("head").parameters()).square().sum().backward()
    with gloo_group(2) as group, pytest.raises(ModelError, match="other than by calling that module"):
        party.separation.update(group[1], [1], 1.0)


def test_the_same_workers_give_the_same_bits() -> None:
    found = []
    for _ in range(2):
        parties = [Party() for _ in range(3)]
        play(parties)
        found.append([one.detach().numpy().tobytes() for one in parties[0].model.parameters()])
    assert found[0] == found[1]


def test_who_is_slow_changes_no_bit_of_what_forward_passes_leave_behind_the_cut() -> None:
    found = []
    for slow in (1, 2):
        parties = [Party(made=model_with_statistics) for _ in range(3)]
        parties[slow].pause_s = 0.05
        play(parties)
        found.append([one.detach().numpy().tobytes() for one in parties[0].model.state_dict().values()])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (
            "tail",
            r"no model has a module 'tail'; there are head \(579 parameters\), front \(20 parameters\), and those",
        ),
        ("front.1", "front.1 has none of the parameters that are trained"),
    ],
)
def test_a_cut_that_is_none(at: str, message: str) -> None:
    model = model_of()
    state = TrainingState({"": model}, {"": optimizer_of(model)}, {}, {})
    with pytest.raises(ModelError, match=message):
        separation_of(spec_of(at), state, Replicas(spec_of(at), state))


def test_of_a_model_with_one_module_no_parameter_is_named_as_one() -> None:
    model = nn.Sequential(OrderedDict(body=nn.Linear(4, 3)))
    state = TrainingState({"": model}, {"": optimizer_of(model)}, {}, {})
    with pytest.raises(ModelError, match=r"there are body \(15 parameters\), and those inside"):
        separation_of(spec_of("tail"), state, Replicas(spec_of("tail"), state))


def test_of_several_models_the_modules_are_named() -> None:
    one, other = model_of(), model_of()
    state = TrainingState({"a": one, "b": other}, {"": optimizer_of(one)}, {}, {})
    with pytest.raises(
        ModelError, match=r"several models have a module 'head'; there are a.head .*, b.head .*, a.front"
    ):
        separation_of(spec_of("head"), state, Replicas(spec_of("head"), state))


def test_shared_parameters_cannot_be_cut() -> None:
    model = nn.Sequential(OrderedDict(front=nn.Linear(4, 4), head=nn.Linear(4, 4)))
    model.get_submodule("head").weight = model.get_submodule("front").weight
    state = TrainingState({"": model}, {"": optimizer_of(model)}, {}, {})
    with pytest.raises(ModelError, match="head shares parameters with layers outside of it"):
        separation_of(spec_of(), state, Replicas(spec_of(), state))


def test_a_compiled_model_is_refused() -> None:
    model = model_of()
    model.compile(backend="eager")
    state = TrainingState({"": model}, {"": optimizer_of(model)}, {}, {})
    with pytest.raises(ModelError, match=r"leave torch\.compile out"):
        separation_of(spec_of(), state, Replicas(spec_of(), state))


def test_one_worker_has_all_layers() -> None:
    rows = [
        (torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(float(index % 3)))
        for index in range(32)
    ]
    weights = []
    for local in (
        LocalUpdatesSpec("layer_separation", 4, cut="head"),
        LocalUpdatesSpec("asynchronous", 4),
    ):
        torch.manual_seed(1)
        model = nn.Sequential(OrderedDict(front=nn.Linear(3, 4), act=nn.Tanh(), head=nn.Linear(4, 1)))
        run = AloneRun(batch=16, num_microbatches=2, local_updates=local, reproducible=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        run.prepare(model=model, optimizer=optimizer, dataset=rows)
        for step in run.steps(epochs=2):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            optimizer.step()
        weights.append([one.detach().numpy().tobytes() for one in model.parameters()])
    assert weights[0] == weights[1], "one update after the other"
