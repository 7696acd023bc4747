"""What goes on beside the microbatches of a step: the exchange of what is complete, the hashing of the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rubato.engine.agreement import Audit
from rubato.engine.exchange import Exchange
from rubato.engine.labels import Other
from rubato.engine.reduction import Reduction
from rubato.engine.replicas import Replicas
from rubato.engine.streaming import Streaming
from rubato.wire import worker as wire

if TYPE_CHECKING:
    from rubato.engine.session import Session


def overlap(session: Session, leaves: range) -> None:
    """Exchange the gradients of the pass that begins while it computes them, where that helps and nothing forbids.

    Each worker does so or not as it sees fit.
    """
    record, exchange = session.record, _overlapping(session)
    if session.comm is None or record is None or exchange is None or record.world == 1:
        return
    if not session.sums.may_overlap or not _is_group_free(session, leaves):
        return
    if _is_last(session, leaves):
        session.sums.overlap(session.step, leaves, _begin_exchange(session, exchange, record))


def send_fragment(
    session: Session, replicas: Replicas, leaves: range, slots: Mapping[int, tuple[float, float]], weight: float
) -> None:
    """Of the present pass all but the last updates are made: where it is this worker's last one, and some of its
    weights are to be told as they are now, have them exchanged beside these updates, where nothing forbids.

    Args:
        slots: (loss, weight) by microbatch of the passes before.
        weight: of the updates that this one has made.
    """
    streaming, comm = session.aggregation, session.comm
    assert isinstance(streaming, Streaming)
    partials, unit = session.sums.of(session.step), session.sums.unit(session.step)
    if not _is_last(session, leaves):
        return
    done = sum(weight for _, weight in slots.values()) / unit
    streaming.take_ahead(session.step, replicas, next(iter(partials.nodes.values()), None), done, weight / unit)
    if comm is not None and session.world > 1 and session.follower is None and _is_group_free(session, leaves):
        streaming.send_ahead(comm, lambda: session.announce((session.step, 0), Other.FRAGMENT))


def begin_digests(session: Session) -> None:
    """At the start of a step: what is to be compared in it is computed beside its microbatches.

    On a GPU it takes no longer than its launches, and is computed when it is asked for.
    """
    record = session.record
    if record is None or session.follower is not None or session.device.type != "cpu" or not session.state.is_steady:
        return
    if not session.is_caught_up():
        session.digests.begin(session.state, session.step, session.agreement(record).parts)


def relay(session: Session) -> None:
    """In the bridge a joiner has no microbatch: it takes part in the exchange at once, beside what it compares."""
    record, exchange = session.record, _overlapping(session)
    if record is None or exchange is None:
        return
    is_bridge = session.reduced == 0 and session.rank in record.joiners
    if is_bridge and not session.sums.is_begun and not session.is_caught_up():
        session.sums.relay(_begin_exchange(session, exchange, record))


def _overlapping(session: Session) -> Exchange | None:
    """The reductions of this generation, where one may begin before the step's end."""
    exchange = session.exchange
    may = exchange is not None and exchange.overlaps and session.device.type == "cpu"
    return exchange if may and session.follower is None and session.state.is_steady else None


def _begin_exchange(session: Session, exchange: Exchange, record: wire.GenerationRecord) -> Reduction:
    stamp = record.attempt, record.number, session.step
    return exchange.begin(session.order, session.sums.of(session.step).present, session.owners(), stamp)


def _is_last(session: Session, leaves: range) -> bool:
    """Whether this worker has no other pass to make in the present step than this one."""
    passes = session.passes(session.step, session.owners(), session.sums.of(session.step).held)
    return next(passes) == leaves and next(passes, None) is None


def _is_group_free(session: Session, leaves: range) -> bool:
    """Whether the group may be used before the step's end: in a generation's first step others catch up on it."""
    if session.reduced:
        return not session.is_repaired
    feeder, record = session.feeder, session.record
    is_fed = feeder is not None and record is not None and feeder.is_over and feeder.record.number == record.number
    return is_fed and (session.audits is Audit.NONE or 0 not in leaves)
