"""When the members tell each other what they keep of the gradients, and what is told where some of it is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rubato.engine.aggregation import REGISTERED, Aggregation, keeps_something
from rubato.engine.header import Decision, Leaving
from rubato.engine.labels import Other
from rubato.engine.reduction import Reduced
from rubato.strategies.peers import Alone, Collectives
from rubato.wire.events import EventKind
from rubato.wire.worker import GenerationRecord

if TYPE_CHECKING:
    from rubato.engine.session import Session


def is_due(session: Session, decision: Decision, *, saves: bool) -> bool:
    """Whether this boundary is one at which they do: equal on all members, and on joiners."""
    aggregation = session.aggregation
    if aggregation is None or aggregation.is_settled:
        return False
    # After a loss some are told only now that the step counts, which others have left behind. All settle behind the
    # first step that they exchange together.
    is_disturbed = aggregation.is_disturbed and session.reduced > 0
    return saves or bool(decision.switch_to) or decision.leaving is Leaving.PAUSE or is_disturbed


def hear(session: Session, result: object) -> None:
    """What each member keeps if the step counts that was exchanged last."""
    aggregation, record = session.aggregation, session.record
    if aggregation is None or record is None or not isinstance(result, Reduced):
        return
    if result.headers[0].generation == record.number:  # else it was heard, and ranks mean others by now
        told = zip(record.members, result.headers, strict=False)
        aggregation.hear({member.incarnation: header.kept for member, header in told})


def count(session: Session, result: Reduced) -> Reduced:
    """The present step counts, and what is kept with it.

    Returns: the result, with what this worker takes for the sum.
    """
    if session.aggregation is None:
        return result
    hear(session, result)
    own = session.aggregation.count(session.step, follows=session.follower is not None)
    return result if own is None else replace(result, chunks=(own,))


def alikeness(session: Session) -> tuple[bool, bool]:
    """Whether all members have the same state now, and whether they may have others behind the next step."""
    aggregation = session.aggregation
    if aggregation is None or not aggregation.parts_states:
        return True, False
    return aggregation.is_settled, True


def settle_states(session: Session) -> None:
    """Where workers have other weights each, from here to the next step all have the same."""
    if session.aggregation is not None and session.aggregation.parts_states:
        settle(session)


def resume(session: Session, dropped: Mapping[str, Any]) -> None:
    """The state of a checkpoint was installed.

    Args:    dropped: what it had of things that this program has not registered.
    """
    aggregation = session.aggregation
    shares = {Aggregation.saved: float(REGISTERED in dropped and keeps_something(dropped[REGISTERED]))}
    if aggregation is not None:
        aggregation.resume()
        shares[aggregation.saved] = shares.get(aggregation.saved, 0.0) + aggregation.dropped
        aggregation.dropped = 0.0
    for saved, share in shares.items():
        if share:
            text = (
                f"{share:.1%} of {saved} was dropped, as it is of another method or release, or of parameters that are "
                "not trained now"
            )
            session.notice(EventKind.KEPT_LOST, text, share=share)


def settle(session: Session) -> None:
    """They do, or have done: it is an exchange like an evaluation's, and who misses it gets its result from another."""
    aggregation = session.aggregation
    if aggregation is None or aggregation.is_settled:
        return
    step, ordinal = session.completed.key
    key = aggregation.settling = (step, ordinal + 1)

    def exchange() -> torch.Tensor:
        session.control.stage("exchange", session.step)
        comm: Collectives = Alone(session.device)
        if session.comm is not None and session.world > 1:
            comm = session.comm
            session.announce(key, Other.SETTLE)
        settled = aggregation.settle(comm)
        comm.confirm()  # some may leave behind this, and others need what they sent
        return settled

    session.complete_together(key, exchange)
    row = session.completed.result
    assert isinstance(row, torch.Tensor)
    aggregation.take(row)
    aggregation.settling = None
    session.control.stage("update")


def tell_lost(session: Session, record: GenerationRecord) -> None:
    """Members were lost, and what they kept with them."""
    aggregation = session.aggregation
    if aggregation is None or session.completed.key == aggregation.settling:
        return
    lost, share = aggregation.lost({member.incarnation for member in record.members})
    if share == 0.0:
        return
    text = (
        f"{share:.1%} of {aggregation.what} (norm {lost:.3g} at most) was lost with those that are gone; training goes "
        "on without it"
    )
    session.notice(EventKind.KEPT_LOST, text, norm=lost, share=share)
