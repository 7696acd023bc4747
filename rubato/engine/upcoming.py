"""What a worker is to read next: for the processes that read ahead."""

from __future__ import annotations

from collections.abc import Iterator

from rubato.engine.session import Session


def upcoming(session: Session) -> Iterator[tuple[int, int, int]]:
    """(step, first, count) of all that this worker is to read, from what it reads now, if the membership stays.

    Nothing where that is dealt out while it trains.
    """
    if session.spec.local_updates.is_led:
        return
    assert session.record is not None
    owners, held = session.owners(), session.sums.of(session.step).held
    reads = session.present_part
    for step in range(session.step, session.total_steps):
        for leaves in session.passes(step, owners, held):
            for part in session.plan.parts(step, leaves):
                if reads is None or step > session.step or part.start >= reads.start:
                    yield step, part.start, len(part)
        owners, held = session.record.owners, set()
