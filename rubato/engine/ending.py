"""The end of a worker's part in a job: the state is sealed, what came of it is told, and the release is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from rubato.checkpoint.manifest import folder_name
from rubato.engine.labels import Other
from rubato.engine.settling import settle
from rubato.errors import GenerationLost, LeaveTraining
from rubato.wire import worker as wire

if TYPE_CHECKING:
    from rubato.engine.session import Session

_CHANGED = (
    "two workers that held the same part of it were lost, and the others have changed the state after the last step; "
    "the checkpoint before it stands"
)


def seal(session: Session) -> None:
    """All steps are done: save the state, which user code may change from here on.

    Nobody goes on before all members hold their parts of the checkpoint. So whoever is lost later, it is written as the
    state was here, by him or by the one that keeps a copy ([ADR 15](docs/adr/0015-each-stripe-is-copied-twice.md)).
    """
    settle(session)
    step, ordinal = session.completed.key
    key = (step, ordinal + 1)

    def gather() -> torch.Tensor:
        session.save(is_last=True)
        session.control.stage("exchange", session.step)
        return session.gather_table(key, torch.zeros(1, dtype=torch.float64), Other.SEAL)

    session.complete_together(key, gather)
    session.control.stage("update")


def end(session: Session, how: Literal["finished", "paused", "stopped"], digest: str = "") -> None:
    """Say that it is over and wait for the release; a loss meanwhile is repaired and all said again.

    Args:
        how: a pause saves here; what has finished was saved by `seal`, and a stop saves nothing.
        digest: of the state as it was sealed.
    Raises:
        LeaveTraining: unless it has finished.
    """
    control, saver = session.control, session.saver
    while True:
        assert session.record is not None
        if how == "paused":
            session.save(is_last=True)
        control.stage("done", session.step)
        control.ended = wire.Ended(control.start.incarnation, how, session.step, digest)
        control.say(control.ended)
        if control.is_alone:
            break
        try:
            while not control.wait_for_release(session.record.number, session.step):
                _save_again(session, digest)
            break
        except GenerationLost as error:
            control.ended = None
            session.membership.recover(str(error))
            session.tell_rows_again()
    saver.wait()
    if how != "finished" and not control.is_alone:
        raise LeaveTraining


def _save_again(session: Session, digest: str) -> None:
    """The checkpoint of the end was lost with those who held parts of it."""
    record, control = session.record, session.control
    assert record is not None
    if session.has_saved:
        return  # another one is under way already
    if not digest or session.state.digest() == digest:
        session.save(is_last=True)
        control.stage("done", session.step)
    else:
        name = folder_name(record.attempt, session.step)
        failed = wire.StripeFailed(control.start.incarnation, name, session.step, _CHANGED, record.number)
        control.say(failed)
