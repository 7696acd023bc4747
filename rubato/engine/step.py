"""One step as user code sees it: microbatches, backward, and the reduction when they are exhausted."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch

from rubato.checkpoint.digest import digest64
from rubato.data.fetch import with_values
from rubato.data.randomness import seed_all
from rubato.data.source import Source
from rubato.data.stream import StreamSource
from rubato.engine.agreement import Audit
from rubato.engine.beside import begin_digests, overlap, relay, send_fragment
from rubato.engine.noise import NoiseWatch
from rubato.engine.replicas import Replicas
from rubato.engine.separation import Separation
from rubato.engine.served import Served
from rubato.engine.serving import Serving
from rubato.engine.session import Session
from rubato.engine.streams import advance
from rubato.engine.updates import Schedules, Weights
from rubato.errors import GenerationLost, ModelError, NonFiniteGradient
from rubato.strategies.layer_separation import Roles
from rubato.wire.events import EventKind

NO_LOSS = (
    "loss.backward() was called instead of step.backward(loss): the gradients are right, but the loss is not known, so "
    "that charts show none; call step.backward(loss), which also scales it where there is a GradScaler"
)


class Step:
    """One optimizer update of the whole job.

    Iterating yields this worker's microbatches (those it inherits from a lost worker too); when they are exhausted the
    gradients are reduced over all workers, and `p.grad` holds the mean over the global batch, equal on every worker.
    """

    def __init__(
        self,
        session: Session,
        source: Source,
        scaler: Any,
        noise: NoiseWatch | None = None,
        replicas: Replicas | None = None,
        rounds: Served | Separation | None = None,
        weights: Weights | None = None,
    ) -> None:
        self._session = session
        self._source = source
        self._scaler = scaler
        self._noise = noise
        self._replicas = replicas
        self._rounds = rounds
        self._weights = weights
        """Those that no pass may change; None: each replica has its own."""
        self.index = session.step
        """Counted from 0, over the whole job."""
        self.epoch = session.plan.epoch_of(session.step)
        """Counted from 0."""
        self.is_reduced = False
        """Whether the gradients of the global batch are there."""
        self._is_begun = False
        self._slots: dict[int, tuple[float, float]] = {}
        self._loss: float | None = None
        self._weight = 0.0
        """Of the present pass, or piece of one: its number of samples, unless the program says otherwise."""

    @property
    def microbatch(self) -> int | None:
        """The one that user code works on now; None outside of the loop over microbatches."""
        return self._session.present_microbatch

    def every(self, count: int) -> bool:
        """Whether this is the count-th step, the 2*count-th, and so on (and the job's last)."""
        if count < 1:
            raise ValueError(f"step.every needs a whole number of at least 1, got {count!r}")
        return (self.index + 1) % count == 0 or self.index + 1 == self._session.total_steps

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether it is the last one of its epoch (or of the job)."""
        following = self.index + 1
        return following == self._session.total_steps or self._session.plan.epoch_of(following) != self.epoch

    def check_reduced(self) -> None:
        """Raises:  ModelError: its microbatches were not gone through."""
        if not self.is_reduced:
            raise ModelError(
                f"step {self.index} ended before its microbatches were exhausted: go through all of them "
                "(`for batch in step: step.backward(...)`), without break"
            )

    def backward(self, loss: torch.Tensor, *, weight: float | None = None) -> None:
        """Add the gradients of a loss, the mean over the microbatch.

        Args:
            loss: a scalar (0-d) tensor.
            weight: what the microbatch counts in the mean over the step, where that is not its number of samples
                (tokens that are not padding, say).
        Raises:
            ModelError: no scalar, or outside of the loop over microbatches.
        """
        if self.microbatch is None:
            raise ModelError("step.backward belongs into the loop over the step's microbatches: `for batch in step:`")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f", {type(loss).__name__}"
            raise ModelError(f"step.backward needs the mean loss of the microbatch as a scalar tensor, not one{shape}")
        if weight is not None and not 0 <= float(weight) < math.inf:
            raise ModelError(f"step.backward needs a weight of at least 0, got {weight}")
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if weight is not None:
            self._weight = float(weight)
        sums = self._session.sums
        sums.begin_backward(self.index, self._weight)
        scaled.backward()
        sums.end_backward()
        self._loss = (self._loss or 0.0) + float(loss.detach())

    def __iter__(self) -> Iterator[Any]:
        session = self._session
        if self._is_begun:
            raise ModelError(
                f"the microbatches of step {self.index} can be gone through once, in one loop without break; "
                "go on to the next step of run.steps()"
            )
        self._is_begun = True
        self._schedules = Schedules(session.state.registered.values())
        session.flat.check_frozen()
        session.flat.takes_notes = self._noise is not None and self._noise.is_due(self.index)
        before_float = [buffer.now.detach().clone() for buffer in session.flat.float_buffers]
        before_other = [buffer.now.clone() for buffer in session.flat.other_buffers]
        integers = b""
        session.compute_ns = session.data_ns = 0
        session.audit = None
        begin_digests(session)
        if self._replicas is not None:
            self._replicas.begin()
        if session.audits is Audit.ALL and self._may_audit:
            yield from self._audit(before_float, before_other)
        while True:
            leaves = session.next_pass()
            relay(session)
            if session.audits is Audit.JOINS and session.audit is None and self._may_audit:
                yield from self._audit(before_float, before_other)
                continue
            if leaves and not session.is_caught_up():
                began = self._compute_clock_ns()
                self._restore(before_float, before_other)
                if self._replicas is None:
                    batch = self._open(leaves)
                    overlap(session, leaves)
                    yield batch
                elif self._rounds is None:
                    yield from self._train(self._replicas, leaves)
                elif not (yield from self._repaired(self._rounds, self._lead(self._rounds, self._replicas, leaves))):
                    continue
                if self._close(leaves, before_float):
                    integers = session.flat.integers()
                session.compute_ns += self._compute_clock_ns() - began
                continue
            if self._rounds is not None and self._has_part(self._rounds):
                self._restore(before_float, before_other)
                yield from self._repaired(self._rounds, self._follow(self._rounds))
                continue
            self._restore(before_float, before_other)  # digests compare the state of the step's start
            if session.aggregation is not None:
                session.aggregation.scale = self._scale
                session.aggregation.unit = session.sums.unit(self.index)
                session.aggregation.weight = sum(weight for _, weight in self._slots.values())
            result = session.reduce(self._slots, integers)
            if result is not None:
                break
        counts = self._deliver(result.integers, before_float)
        if isinstance(self._rounds, Serving):
            self._rounds.log.count(self.index)
        if self._replicas is not None:
            if not counts:
                self._restore(before_float, before_other)
            self._replicas.take_mean(
                (
                    *zip(session.flat.float_buffers, before_float, strict=True),
                    *zip(session.flat.other_buffers, before_other, strict=True),
                )
            )
        advance(session, self._source)

    def _train(self, replicas: Replicas, leaves: range) -> Iterator[Any]:
        """A pass piece by piece, each for an update of its replica."""
        session, told = self._session, list[tuple[float | None, float]]()
        parts = list(session.plan.parts(self.index, leaves))
        for part in parts:
            yield self._open(leaves, part)
            replicas.update(self._weight)
            told.append((self._loss, self._weight))
            if len(parts) - len(told) == session.spec.local_updates.delay > 0:
                send_fragment(session, replicas, leaves, self._slots, sum(weight for _, weight in told))
        self._finish(replicas, told)

    def _finish(self, replicas: Replicas, told: Sequence[tuple[float | None, float]]) -> None:
        """Updates of these losses and weights were made."""
        replicas.finish()
        self._tell_left_out(replicas)
        self._weight = sum(weight for _, weight in told)
        losses = [loss * weight for loss, weight in told if loss is not None and weight > 0]
        if any(loss is None for loss, _ in told):
            self._loss = None
        else:
            self._loss = sum(losses) / self._weight if self._weight else 0.0

    def _tell_left_out(self, replicas: Replicas) -> None:
        if replicas.left_out:
            text = f"{replicas.left_out} updates of step {self.index} were not finite: left out"
            self._session.tell(EventKind.NON_FINITE, text)
            replicas.left_out = 0

    def _lead(self, rounds: Served | Separation, replicas: Replicas, leaves: range) -> Iterator[Any]:
        """A round, as the owner of its microbatches; without others it computes what there is."""
        session, others = self._session, self._others()
        parts = list(session.plan.parts(self.index, leaves))
        rounds.begin()
        if others:
            with rounds.waited:
                session.finish_feeding()
            session.control.stage("exchange", self.index)
        if isinstance(rounds, Served):
            yield from self._serve(rounds, leaves, self._pieces(rounds, parts, others), others)
        elif others:
            assert session.comm is not None
            rounds.keep(session.comm, self._roles(), len(parts), self.index)
        else:
            yield from self._train(replicas, leaves)
            return
        self._finish(replicas, rounds.told)

    def _serve(self, served: Served, leaves: range, pieces: list[range], others: list[int]) -> Iterator[Any]:
        """As the server of all updates."""
        session = self._session
        if others:
            assert session.comm is not None
            served.serve(session.comm, others, len(pieces))
        else:
            for ticket in served.alone(self.index, len(pieces)):
                yield self._open(leaves, pieces[ticket])
                self._schedules.check()
                served.take(served.pack(ticket, self._loss, self._weight))
        served.close()

    def _pieces(self, served: Served, parts: list[range], others: list[int]) -> list[range]:
        return served.pieces(parts, len(others), lambda part: self._session.plan.part_size(self.index, part))

    def _follow(self, rounds: Served | Separation) -> Iterator[Any]:
        """A round, as one of those that own nothing of it."""
        session = self._session
        assert session.record is not None
        leaves = range(sum(size > 0 for size in session.plan.sizes(self.index)))
        parts = list(session.plan.parts(self.index, leaves))
        rounds.begin()
        session.finish_feeding()
        if isinstance(rounds, Served):
            yield from self._help(rounds, leaves, self._pieces(rounds, parts, self._others()))
        elif session.rank in self._roles().front:
            yield from self._separate(rounds, leaves, parts)
        else:
            assert session.comm is not None
            session.control.stage("exchange", self.index)
            rounds.keep(session.comm, self._roles(), len(parts), self.index)
        session.present_microbatch = session.present_part = None
        if self._replicas is not None:
            self._tell_left_out(self._replicas)
        rounds.go_back()
        rounds.helped = (session.record.number, self.index)

    def _help(self, served: Served, leaves: range, pieces: list[range]) -> Iterator[Any]:
        """As one that computes tickets of updates that another one makes."""
        session = self._session
        assert session.comm is not None
        server, place = session.owners()[0], self._others().index(session.rank)
        session.control.stage("exchange", self.index, leaves.start)
        for ticket in served.tickets(session.comm, server, place, len(pieces)):
            began = self._compute_clock_ns()
            served.restore_buffers()
            yield self._open(leaves, pieces[ticket])
            self._schedules.check()
            push = served.pack(ticket, self._loss, self._weight)
            session.compute_ns += self._compute_clock_ns() - began
            session.control.stage("exchange", self.index, ticket)
            served.send(session.comm, server, push)

    def _separate(self, separation: Separation, leaves: range, parts: list[range]) -> Iterator[Any]:
        """As one that computes the front of the layers."""
        session, roles = self._session, self._roles()
        assert session.comm is not None
        comm, keeper, place = session.comm, roles.asks(session.rank), roles.front.index(session.rank)
        separation.weight = lambda: self._weight
        separation.begins = lambda: 0 if session.present_part is None else session.present_part.start
        separation.stage = lambda stage: session.control.stage(stage, self.index, leaves.start)
        with separation.asking(comm, keeper):
            for part in parts:
                mine, self._loss, self._weight = separation.share(part, place, len(roles.front)), None, 0.0
                began = self._compute_clock_ns()
                if session.plan.part_size(self.index, mine):
                    yield self._open(leaves, mine)
                    if separation.lost is not None:
                        raise separation.lost
                    self._schedules.check()
                session.control.stage("exchange", self.index, leaves.start)
                separation.tell_done(comm, keeper, self._loss, self._weight)
                separation.update(comm, roles.front, self._weight)
                session.compute_ns += self._compute_clock_ns() - began
        separation.wait_updated(comm, keeper)
        if session.rank == roles.front[-1]:  # which has samples in every update
            separation.tell_front(comm, roles.keepers[0])

    def _compute_clock_ns(self) -> int:
        """Stands still while this worker reads samples, and while it waits for the others of a round."""
        waited_ns = 0 if self._rounds is None else self._rounds.waited.ns
        return time.perf_counter_ns() - self._session.data_ns - waited_ns

    def _roles(self) -> Roles:
        """Of a round with separated layers and others."""
        session = self._session
        return Roles.led(session.owners()[0], self._others(), session.spec.local_updates.keepers)

    def _others(self) -> list[int]:
        """Ranks that have a part in the round that another one leads."""
        session = self._session
        if self._rounds is None or self._rounds.is_replay:
            return []
        # Empty microbatches have owners, too, and after a loss others than those that the leader holds already.
        shares = zip(session.shares(), session.plan.sizes(self.index), strict=True)
        return sorted({owner for owner, size in shares if size} - {session.owners()[0]})

    def _has_part(self, rounds: Served | Separation) -> bool:
        """Whether this worker has one in the round that another one leads, and has not done it in this generation."""
        session = self._session
        assert session.record is not None
        is_done = rounds.helped == (session.record.number, self.index) or session.is_caught_up()
        return not is_done and session.follower is None and session.rank in self._others()

    def _repaired(self, rounds: Served | Separation, work: Iterator[Any]) -> Generator[Any, None, bool]:
        """The same; where a member is lost amid it, from the round's beginning, and this worker has recovered.

        Returns: whether it was done.
        """
        try:
            yield from work
        except GenerationLost as error:
            self._session.present_microbatch = self._session.present_part = None
            rounds.go_back()
            self._session.membership.recover(str(error))
            return False
        return True

    @property
    def _may_audit(self) -> bool:
        return not isinstance(self._source, StreamSource)

    def _audit(self, before_float: list[torch.Tensor], before_other: list[torch.Tensor]) -> Iterator[Any]:
        """One microbatch that others compute too, for its digest alone."""
        session = self._session
        self._restore(before_float, before_other)
        read_ns = session.data_ns
        yield self._open(range(1))
        session.data_ns = read_ns  # neither computing it nor reading it is this worker's share of the step
        self._check_unchanged()
        session.audit = session.sums.digest_of_pass(self.index, self._weight, before_float)
        session.present_microbatch = None

    def _restore(self, before_float: list[torch.Tensor], before_other: list[torch.Tensor]) -> None:
        """Every microbatch starts from the buffers of the step's start, and without gradients."""
        flat = self._session.flat
        with torch.no_grad():
            for buffer, before in zip(flat.float_buffers, before_float, strict=True):
                buffer.put(before)
            for buffer, before in zip(flat.other_buffers, before_other, strict=True):
                buffer.put(before)
        if self._replicas is not None:
            self._replicas.restore()
        for _, parameter in flat.parameters:
            parameter.grad = None

    def _open(self, leaves: range, part: range | None = None) -> Any:
        session, leaf, part = self._session, leaves.start, part or leaves
        size = session.plan.part_size(self.index, part)
        session.present_microbatch, session.present_part = leaf, part
        self._loss, self._weight = None, float(size)
        # Deadlines are for one microbatch, not for all of them; the first of its size may have to be compiled.
        session.control.stage("fetch", self.index, leaf)
        began = time.perf_counter_ns()
        batch = to_device(self._source.read(self.index, part.start, len(part)), session.device)
        session.data_ns += time.perf_counter_ns() - began
        session.control.stage("compute" if size in session.sizes_seen else "first_batch", self.index, leaf)
        session.sizes_seen.add(size)
        seed_all(session.spec.seed, self.index, part.start)
        if self._weights is not None:
            self._weights.begin()
        return batch

    def _check_unchanged(self) -> None:
        """Behind a pass: what belongs behind the loop was left for there."""
        self._schedules.check()
        if self._weights is not None:
            self._weights.check()

    def _close(self, leaves: range, before_float: list[torch.Tensor]) -> bool:
        """Take the gradients of a pass into the sum. Returns whether the step's lowest microbatch was in it."""
        session = self._session
        self._check_unchanged()
        sizes = session.plan.sizes(self.index)[leaves.start : leaves.stop]
        size, weight = sum(sizes), self._weight

        def look(vector: torch.Tensor) -> None:
            session.audit = digest64([vector])

        is_looked_at = self._may_audit and session.audits is Audit.MEETS_JOINERS and 0 in leaves
        if not session.sums.take(self.index, leaves, weight, before_float, look if is_looked_at else None):
            raise ModelError(
                f"microbatch {leaves.start} of step {self.index} left no gradient: call step.backward(loss) in the "
                "loop, with a loss that depends on the prepared model's parameters"
            )
        if self._loss is None and not session.told.misses_loss:
            session.told.misses_loss = True
            session.notice(EventKind.LOSS_MISSING, NO_LOSS)
        loss = float("nan") if self._loss is None else self._loss
        for leaf, part in zip(leaves, sizes, strict=True):
            self._slots[leaf] = (loss, weight if part == size else weight * part / size)
        session.present_microbatch = session.present_part = None
        return 0 in leaves

    @property
    def _scale(self) -> float:
        """What a GradScaler has multiplied the losses of this step by."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def _deliver(self, integers: bytes, before_float: list[torch.Tensor]) -> bool:
        """Give the model what all have reduced. Returns whether the step counts."""
        session = self._session
        decision = session.decision
        assert decision is not None
        skip = not decision.is_finite and session.spec.on_non_finite == "skip"
        lets_scaler_skip = skip and isinstance(self._scaler, torch.amp.GradScaler) and self._scaler.is_enabled()
        if not decision.is_finite:
            what = f"the gradient of step {self.index} was not finite"
            if session.spec.on_non_finite == "fail":
                advice = "the spec says on_non_finite: fail; lower the learning rate, or say skip"
                raise NonFiniteGradient(f"{what}, and {advice}")
            done = "skipped" if skip else "delivered as it is"
            if not skip and self._scaler is None:
                done += " (on_non_finite: skip leaves such steps out, fail stops at the first)"
            if in_a_row := session.told.count_not_finite():
                often = f"; so were those of the {in_a_row - 1} steps before" if in_a_row > 1 else ""
                session.notice(EventKind.NON_FINITE, f"{what}; it was {done}{often}")
        else:
            session.told.count_finite()
        if session.flat.takes_notes and decision.is_finite and self._noise is not None:
            samples = session.plan.batch_size(self.index)
            unit = session.sums.unit(self.index) * samples / decision.weight  # a program may weigh by something else
            self._noise.take(session.flat, session.sums.mean, unit, samples, self._scale)
        session.flat.deliver(session.sums.mean, before_float, skip=skip and not lets_scaler_skip)
        if lets_scaler_skip:
            session.flat.spoil()
        if self._scaler is not None and not self._slots:
            self._scaler.scale(torch.zeros(1, device=session.device))  # it must have scaled something before its step
        session.flat.put_integers(integers)
        seed_all(session.spec.seed, self.index, "update")
        self.is_reduced = True
        return not skip and decision.weight > 0


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return with_values(batch, {key: to_device(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
