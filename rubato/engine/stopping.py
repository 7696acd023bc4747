"""`run.stop`: the step that is trained now is the job's last one, which all members decide alike.

Each program decides by values that are equal on all workers, so nobody needs to be told. That they did decide alike is
seen where the next step's exchange would begin: there all say that there is none. Whoever trains on says something
else, and so all hear of it. A joiner that repeats the members' steps takes their word for it, as of any exchange.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rubato.engine.agreement import Disagreement
from rubato.engine.entry import Key
from rubato.engine.labels import Other
from rubato.wire import worker as wire

if TYPE_CHECKING:
    from rubato.engine.session import Session


def stop(session: Session) -> None:
    """There is no step behind the present one."""
    if session.step + 1 < session.total_steps:
        session.stopped_of, session.total_steps = session.total_steps, session.step + 1


def resume_stopped(session: Session, stopped_of: int | None) -> None:
    """The state is that of a run that its program stopped. As long as it is to be, it is over; else it goes on."""
    if stopped_of == session.total_steps:
        session.stopped_of, session.total_steps = stopped_of, session.step


def agree(session: Session) -> None:
    """All steps are done: where they were stopped, make sure that all members did so, and tell it.

    Raises:
        NotOnAllWorkers: some train on.
        Diverged: the next step would have shown that this worker's state is another one.
    """
    if session.stopped_of is None:
        return
    step, ordinal = session.completed.key
    session.complete_together((step, ordinal + 1), lambda: _tell(session, (step, ordinal + 1)))
    control = session.control
    if control.standby is not None:  # whoever leads next asks for it
        control.standby = replace(control.standby, total_steps=session.step)
    control.say(wire.Stopped(control.start.incarnation, session.step))
    control.stage("update")


def _tell(session: Session, key: Key) -> torch.Tensor:
    """That all say so is the result."""
    session.control.stage("exchange", session.step)
    record, comm = session.record, session.comm
    agreed = torch.zeros(1, dtype=torch.float64)
    if record is None or comm is None or session.world == 1:
        return agreed
    session.finish_feeding()
    agreement = session.agreement(record)
    digest = agreement.digest(session.digests.of(session.state, session.step, agreement.parts))
    told = session.announce(key, Other.STOP, digest or 0)
    try:
        agreement.compare([said or None for said in told])
    except Disagreement as error:
        session.diverge(error)
    return agreed
