"""Asynchronous updates: ranks are threads over real gloo, and each round is gone through again as its log says."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from alone import AloneRun, loss_of
from groups import gloo_group, on_ranks
from torch import nn

from rubato.data.order import RoundPlan
from rubato.engine.comm import Communicator
from rubato.engine.replicas import Replicas
from rubato.engine.served import Push
from rubato.engine.serving import Serving, Update, UpdateLog, serving_of
from rubato.engine.state import TrainingState
from rubato.engine.step import Step
from rubato.errors import ModelError
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import BatchSpec, JobSpec, WorkersSpec

pytestmark = pytest.mark.usefixtures("generators")

UPDATES = 9
ROWS = [
    (torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(float(index % 3)))
    for index in range(44)
]


def spec_of(local: LocalUpdatesSpec, batch: int = 2 * UPDATES) -> JobSpec:
    cut = BatchSpec(batch, 2)
    return JobSpec(
        name="test",
        entrypoint="main.py:train",
        batch=cut,
        workers=WorkersSpec(max=2),
        local_updates=local,
        reproducible=False,
    )


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Party:
    """One worker with a model of its own."""

    def __init__(self, local: LocalUpdatesSpec) -> None:
        self.model = model_of()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        spec = spec_of(local)
        self.state = TrainingState({"": self.model}, {"": optimizer}, {}, {})
        self.replicas = Replicas(spec, self.state)
        serving = serving_of(spec, self.state, self.replicas)
        assert serving is not None
        self.serving: Serving = serving

    def begin(self) -> None:
        self.replicas.begin()
        self.serving.begin()

    def compute(self, ticket: int) -> Push:
        """Its loss is its number."""
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(ticket))
        self.serving.restore_buffers()
        self.model(x).square().mean().backward()
        return self.serving.pack(ticket, float(ticket), 1.0 + ticket % 2)

    def content(self) -> list[bytes]:
        return [one.detach().numpy().tobytes() for one in self.model.state_dict().values()]


def round_over(
    group: Sequence[Communicator], local: LocalUpdatesSpec, pause: Callable[[int, int], float]
) -> tuple[list[Party], list[int]]:
    """A round with rank 0 as the server; the parties as they are behind it, and who computed which ticket."""
    parties = [Party(local) for _ in group]
    computed: list[tuple[int, int]] = []

    def act(rank: int) -> None:
        party, helpers = parties[rank], list(range(1, len(group)))
        party.begin()
        if rank == 0:
            party.serving.serve(group[0], helpers, UPDATES)
            party.serving.close()
            return
        for ticket in party.serving.tickets(group[rank], 0, rank - 1, UPDATES):
            push = party.compute(ticket)
            computed.append((rank, ticket))
            time.sleep(pause(rank, ticket))
            party.serving.send(group[rank], 0, push)
        party.serving.go_back()

    on_ranks(len(group), act)
    assert sorted(ticket for _, ticket in computed) == list(range(UPDATES))
    return parties, [rank for rank, _ in sorted(computed, key=lambda one: one[1])]


def again(local: LocalUpdatesSpec, log: Sequence[Update]) -> Party:
    """The same round by one worker, in the order of a log."""
    party = Party(local)
    party.begin()
    for ticket in party.serving.in_order(log):
        party.serving.take(party.compute(ticket))
    party.serving.close()
    return party


SLOW: dict[str, Callable[[int, int], float]] = {
    "alike": lambda rank, ticket: 0.002,
    "one is slow": lambda rank, ticket: 0.08 if rank == 1 else 0.002,
    "by turns": lambda rank, ticket: 0.002 + 0.02 * ((rank + ticket) % 3),
}


@pytest.mark.parametrize("pace", SLOW)
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(
    "local",
    [
        LocalUpdatesSpec("asynchronous", UPDATES),
        LocalUpdatesSpec("asynchronous", UPDATES, damping=True),
        *(LocalUpdatesSpec("asynchronous", UPDATES, staleness=one) for one in (1, 2, 3)),
    ],
    ids=["asp", "damped", "ssp 1", "ssp 2", "ssp 3"],
)
def test_a_round_gone_through_again_in_the_order_of_its_log_gives_its_bits(
    world: int, local: LocalUpdatesSpec, pace: str
) -> None:
    with gloo_group(world) as group:
        parties, computed = round_over(group, local, SLOW[pace])
    server, *others = parties
    log = server.serving.log.last
    assert sorted(update.ticket for update in log) == list(range(UPDATES))
    assert all(0 <= update.version <= index for index, update in enumerate(log))
    assert again(local, log).content() == server.content()
    assert sorted(server.serving.told) == sorted((float(one), 1.0 + one % 2) for one in range(UPDATES))
    untouched = Party(local).content()
    assert all(party.content() == untouched for party in others)
    assert server.content() != untouched
    if local.staleness is not None:
        _check_bound(log, computed, local.staleness)
    if pace == "one is slow" and world > 2 and local.staleness is None:
        assert computed.count(1) < UPDATES / (world - 1)
        assert any(index > update.version for index, update in enumerate(log))


def _check_bound(log: Sequence[Update], computed: Sequence[int], staleness: int) -> None:
    """Nobody is further ahead of the slowest, among those that have tickets left, than the spec says."""
    ranks = sorted(set(computed))
    last = {rank: max(index for index, update in enumerate(log) if computed[update.ticket] == rank) for rank in ranks}
    clocks = dict.fromkeys(ranks, 0)
    for index, update in enumerate(log):
        active = [clocks[rank] for rank in ranks if last[rank] >= index]
        assert clocks[computed[update.ticket]] - min(active) <= staleness
        clocks[computed[update.ticket]] += 1


def test_integer_buffers_add_up_what_each_ticket_changes_with_others_and_alone() -> None:
    """By what depends on the samples; and modes are as the program has switched them in its loop."""

    def compute(party: Party, ticket: int) -> Push:
        party.serving.restore_buffers()
        party.model.eval()
        party.model(torch.ones(4, 3)).square().mean().backward()
        party.model.get_buffer("0.num_batches_tracked").add_(10 + ticket)
        return party.serving.pack(ticket, 0.0, 1.0)

    local = LocalUpdatesSpec("asynchronous", UPDATES)
    parties = [Party(local) for _ in range(2)]
    for party in parties:
        party.begin()

    def act(rank: int) -> None:
        if rank == 0:
            parties[0].serving.serve(group[0], [1], UPDATES)
            parties[0].serving.close()
        else:
            for ticket in parties[1].serving.tickets(group[1], 0, 0, UPDATES):
                parties[1].serving.send(group[1], 0, compute(parties[1], ticket))

    with gloo_group(2) as group:
        on_ranks(2, act)
    alone = Party(local)
    alone.begin()
    for ticket in alone.serving.in_order(parties[0].serving.log.last):
        alone.serving.take(compute(alone, ticket))
    alone.serving.close()
    for party in (parties[0], alone):
        assert party.model.get_buffer("0.num_batches_tracked") == sum(10 + ticket for ticket in range(UPDATES))
        assert not party.model.training


def stale_by_hand(log: Sequence[Update]) -> nn.Module:
    """In double precision: each ticket with weights and buffers of its version, whose changes the present ones take."""
    model = model_of().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    versions: list[dict[str, torch.Tensor]] = []
    for update in log:
        present = copy.deepcopy(model.state_dict())
        versions.append(present)
        model.load_state_dict(versions[update.version])
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(update.ticket)).double()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        changes = {name: one - versions[update.version][name] for name, one in model.named_buffers()}
        model.load_state_dict(present)
        optimizer.step()
        for name, one in model.named_buffers():
            one += changes[name]
    return model


@pytest.mark.parametrize("world", [2, 3, 5])
def test_each_update_takes_the_changes_that_its_ticket_made_to_the_buffers_it_was_given(world: int) -> None:
    local = LocalUpdatesSpec("asynchronous", UPDATES)
    with gloo_group(world) as group:
        parties, _ = round_over(group, local, SLOW["by turns"])
    expected = stale_by_hand(parties[0].serving.log.last).state_dict()
    for name, one in parties[0].model.state_dict().items():
        torch.testing.assert_close(one.double(), expected[name].double(), rtol=2e-3, atol=2e-4, msg=name)
    assert parties[0].model.get_buffer("0.num_batches_tracked") == UPDATES


def test_a_buffer_without_a_value_takes_the_first_and_adds_no_other_value_to_it() -> None:
    """Two tickets are computed with an infinite one, and each tells its value."""

    def compute(party: Party, ticket: int) -> Push:
        party.model(torch.ones(4, 3)).square().mean().backward()
        mean = party.model.get_buffer("0.running_mean")
        mean.copy_(torch.where(torch.isfinite(mean), mean + 1.0, 10.0 * (1 + ticket)))
        return party.serving.pack(ticket, 0.0, 1.0)

    party = Party(LocalUpdatesSpec("asynchronous", UPDATES))
    party.model.get_buffer("0.running_mean").fill_(float("inf"))
    party.model.eval()
    party.begin()
    for ticket in party.serving.in_order([Update(0, 0), Update(1, 0), Update(2, 1), Update(3, 2)]):
        party.serving.take(compute(party, ticket))
    party.serving.close()
    assert party.model.get_buffer("0.running_mean").tolist() == [22.0] * 3


def test_damping_makes_old_gradients_count_less() -> None:
    log = [Update(0, 0), Update(1, 0), Update(2, 0), *(Update(ticket, ticket) for ticket in range(3, UPDATES))]
    plain, damped = (again(LocalUpdatesSpec("asynchronous", UPDATES, damping=one), log) for one in (False, True))
    assert plain.content() != damped.content()
    rates = [group["lr"] for group in damped.state.optimizers[""].param_groups]
    assert rates == [0.05]


def test_the_log_travels_as_integers_and_is_saved_round_by_round() -> None:
    log, other = UpdateLog(4), UpdateLog(4)
    rounds = [[Update(1, 0), Update(0, 0), Update(2, 1)], [Update(0, 0)]]
    for step, one in enumerate(rounds, 5):
        log.write(one)
        other.put(log.now)
        assert other.last == one
        log.count(step)
        other.count(step)
    third = UpdateLog(4)
    third.load_state_dict(copy.deepcopy(log.state_dict()))
    assert [one.tolist() for one in third.rounds] == [[[1, 0], [0, 0], [2, 1]], [[0, 0]]]
    assert [one.tolist() for one in other.rounds] == [one.tolist() for one in third.rounds]
    assert third.by_step == other.by_step == dict(zip((5, 6), rounds, strict=True))
    assert UpdateLog(4).state_dict()["updates"].shape == (0, 2)


def test_a_log_that_does_not_say_where_it_begins_is_of_all_steps() -> None:
    log, other = UpdateLog(4), UpdateLog(4)
    log.write([Update(0, 0)])
    log.count(0)
    state = log.state_dict()
    del state["first"]  # as older checkpoints have it
    other.load_state_dict(state)
    assert other.by_step == {0: [Update(0, 0)]}


def test_a_log_that_begins_behind_another_method_is_gone_through_from_there() -> None:
    serving = Party(LocalUpdatesSpec("asynchronous", UPDATES)).serving
    serving._replayed = {5: [Update(1, 0), Update(0, 0)]}
    assert serving.order(5, 2) == [Update(1, 0), Update(0, 0)]
    with pytest.raises(ModelError, match=r"begins at step 5.*go on from the checkpoint of that step"):
        serving.order(4, 2)
    with pytest.raises(ModelError, match="has 0: it is of a shorter job"):
        serving.order(6, 2)


def test_fewer_tickets_than_workers() -> None:
    local = LocalUpdatesSpec("asynchronous", UPDATES)
    with gloo_group(3) as group:
        parties = [Party(local) for _ in group]

        def act(rank: int) -> None:
            party = parties[rank]
            party.begin()
            if rank == 0:
                party.serving.serve(group[0], [1, 2], 1)
                party.serving.close()
            elif rank == 1:
                for ticket in party.serving.tickets(group[1], 0, 0, 1):
                    party.serving.send(group[1], 0, party.compute(ticket))

        on_ranks(3, act)
    assert parties[0].serving.log.last == [Update(0, 0)]


def test_whoever_got_only_empty_microbatches_of_an_interrupted_step_has_no_part_in_its_round() -> None:
    """The leader holds the others already, and waits in the exchange."""
    step = Step.__new__(Step)
    plan = SimpleNamespace(sizes=lambda index: (8, 8, 0, 0))
    step._session = SimpleNamespace(shares=lambda: (0, 0, 0, 1), owners=lambda: (0,) * 4, plan=plan)  # type: ignore[assignment]
    step._rounds, step.index = SimpleNamespace(is_replay=False), 2  # type: ignore[assignment]
    assert step._others() == []
    plan.sizes = lambda index: (8, 8, 8, 8)
    assert step._others() == [1]


# --- as a job sees it -------------------------------------------------------------------------------------------------


def train(run: AloneRun, optimizer: Callable[[Any], torch.optim.Optimizer]) -> nn.Module:
    model = model_of()
    stepper = optimizer(model.parameters())
    run.prepare(model=model, optimizer=stepper, dataset=ROWS)
    for step in run.steps(epochs=2):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        stepper.step()
    return model


def alone(**local: Any) -> AloneRun:
    return AloneRun(
        batch=16, num_microbatches=2, local_updates=LocalUpdatesSpec("asynchronous", 4, **local), reproducible=False
    )


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def test_one_worker_makes_one_update_after_the_other() -> None:
    run = alone()
    model = train(run, sgd)
    expected = by_hand(run.session.spec.seed)
    for (name, one), other in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-4, atol=2e-5, msg=name)
    assert [row.values["staleness"] for row in run.rows] == [0.0] * 5, "the last row is told at the end"


def by_hand(seed: int) -> nn.Module:
    """In double precision, as if there were no rounds."""
    plan = RoundPlan(len(ROWS), 16, 2, seed, 4)
    model = model_of().double()
    stepper = sgd(model.parameters())
    for step in range(2 * plan.steps_per_epoch):
        filled = sum(size > 0 for size in plan.sizes(step))
        for part in plan.parts(step, range(filled)):
            rows = [ROWS[index] for index in plan.pieces.samples(step, part.start, len(part))]
            x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
            stepper.zero_grad()
            loss_of(model, x.double(), y.double()).backward()  # type: ignore[no-untyped-call]
            stepper.step()
    return model


def test_a_job_gone_through_again_in_the_order_of_its_log_gives_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the log is made up: of workers that were late."""
    rounds = [[Update(2, 0), Update(0, 0), Update(1, 1), Update(3, 1)], [Update(1, 0), Update(0, 0), Update(2, 2)]]

    def order(serving: Serving, step: int, tickets: int) -> list[Update]:
        made_up = [one for one in rounds[step % 2] if one.ticket < tickets]
        return made_up if len(made_up) == tickets else [Update(ticket, 0) for ticket in range(tickets)]

    monkeypatch.setattr(Serving, "order", order)
    models = [train(alone(), lambda parameters: torch.optim.AdamW(parameters, lr=0.05)) for _ in range(2)]
    states = [[one.detach().numpy().tobytes() for one in model.state_dict().values()] for model in models]
    assert states[0] == states[1]
    monkeypatch.undo()
    in_turn = train(alone(), lambda parameters: torch.optim.AdamW(parameters, lr=0.05))
    assert states[0] != [one.detach().numpy().tobytes() for one in in_turn.state_dict().values()]


def test_a_batch_without_a_gradient_is_refused() -> None:
    run = alone()
    model = model_of()
    run.prepare(model=model, optimizer=sgd(model.parameters()), dataset=ROWS)
    step = next(run.steps(epochs=1))
    with pytest.raises(ModelError, match="a batch left no gradient"):
        list(step)


def test_damping_needs_a_learning_rate() -> None:
    party = Party(LocalUpdatesSpec("asynchronous", UPDATES, damping=True))
    for group in party.state.optimizers[""].param_groups:
        del group["lr"]
    party.begin()
    party.model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ModelError, match="damping multiplies learning rates"):
        party.replicas.update(1.0, 0.5)


def test_threads_that_wait_for_others_end_with_their_group() -> None:
    with gloo_group(3) as group:
        round_over(group, LocalUpdatesSpec("asynchronous", UPDATES), SLOW["alike"])
    deadline = time.monotonic() + 20
    while any(one.name == "messages" for one in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [one for one in threading.enumerate() if one.name == "messages"]
