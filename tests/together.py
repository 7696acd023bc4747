"""The workers of one job in the test's own process, a thread each, without a controller: sessions over real gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from alone import HeardRun
from groups import gloo_group, on_ranks, record_of
from torch import nn

from rubato.engine.comm import Communicator, Message
from rubato.engine.membership import Membership
from rubato.engine.pending import Pending
from rubato.engine.session import Session
from rubato.engine.settling import resume
from rubato.wire.spec import JobSpec


@dataclass(frozen=True)
class Saved:
    """A checkpoint, as one worker has it at a boundary."""

    document: dict[str, Any]
    tensors: list[torch.Tensor]
    extra: dict[str, Any]


class _Membership(Membership):
    """The first generation is the only one."""

    def __init__(self, session: Session, comm: Communicator | None, world: int, saved: Saved | None) -> None:
        super().__init__(session)
        self._comm, self._world, self._saved = comm, world, saved

    def recover(self, cause: str) -> None:
        """A test hears of it: nobody leads these workers to another generation."""
        raise AssertionError(f"the only generation is over: {cause}")

    def begin_alone(self) -> None:
        session, saved = self._session, self._saved
        session.record = record_of(self._world, num_microbatches=session.num_microbatches)
        session.comm, session.rank = self._comm, self._comm.rank if self._comm is not None else 0
        if saved is not None:
            resume(session, session.state.install(saved.document, [one.clone() for one in saved.tensors]))
            session.take_extra(saved.extra)
        session.has_state = True
        session.begin_generation(self.exchange_of(1, self._comm))


class TogetherRun(HeardRun):
    """One of several workers.

    Args:
        comm: of all of them; None: it is the only one.
        saved: what it goes on from.
    """

    def __init__(self, job: JobSpec, comm: Communicator | None, saved: Saved | None = None) -> None:
        super().__init__(job)
        session = self.session
        session.membership = _Membership(session, comm, comm.world if comm is not None else 1, saved)
        self.saved: dict[int, Saved] = {}
        """By committed steps, the checkpoints of the run."""
        self.sent_bytes = 0
        """To others, without what the transport adds."""
        if comm is not None:
            self._count(comm)

        def save(*, is_last: bool = False) -> None:
            document, tensors = session.state.encode()
            extra = {**session.extra(), "rows": []}
            self.saved[session.step] = Saved(document, [one.detach().clone() for one in tensors], extra)

        session.save = save  # type: ignore[method-assign]

    def _count(self, comm: Communicator) -> None:
        pass_messages, gather = comm._pass_by_gloo, comm.start_all_gather

        def counted(received: Sequence[Message], sent: Sequence[Message], apart: int | None = None) -> Any:
            self.sent_bytes += sum(tensor.numel() * tensor.element_size() for _, tensor in sent)
            return pass_messages(received, sent, apart)

        def counted_gather(out: torch.Tensor, source: torch.Tensor) -> Pending:
            self.sent_bytes += (comm.world - 1) * source.numel() * source.element_size()
            return gather(out, source)

        comm._pass_by_gloo, comm.start_all_gather = counted, counted_gather  # type: ignore[method-assign]


def together(
    job: JobSpec,
    model_of: Callable[[], nn.Module],
    train: Callable[[TogetherRun, nn.Module], None],
    saved: Saved | None = None,
    group_of: Callable[[int], AbstractContextManager[Sequence[Communicator]]] = gloo_group,
) -> tuple[nn.Module, dict[int, Saved]]:
    """Train with the job's first number of workers, from a model each.

    Args:    group_of: so many workers, what they talk over.
    Returns: the model at the end, and the checkpoints; fails where workers differ in a bit of the state.
    """
    world = job.workers.initial
    models = [model_of() for _ in range(world)]  # which seeds the generators that all threads share

    def worker(comm: Communicator | None, model: nn.Module) -> TogetherRun:
        run = TogetherRun(job, comm, saved)
        try:
            train(run, model)
        except BaseException:
            if comm is not None:
                comm.bury()  # else the others wait for it
            raise
        return run

    if world == 1:
        runs = [worker(None, models[0])]
    else:
        with group_of(world) as group:
            runs = on_ranks(world, lambda rank: worker(group[rank], models[rank]))
    assert len({run.session.state.digest() for run in runs}) == 1
    return models[0], runs[0].saved
