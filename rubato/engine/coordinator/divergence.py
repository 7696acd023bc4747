"""The members' states differ: who goes, which checkpoints still count, and when it is the program's fault. Pure.

    a majority agrees         the others are out (they end themselves); the rest trains on from what it holds
    no majority               nobody knows who is right: all are out, back to a checkpoint
    a joiner differs          it is out before anything counts that it computed; what was saved without it stands,
                              unless the members differ, too, when they compare their states thereupon

Whoever is out may have written a part of each checkpoint since all were last known to agree (its *agreed* step): those
do not count any more. Twice without having got beyond where it happened before, or two joiners in a row: it is no
accident of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alarm:
    """A worker that is not among a majority says so."""

    generation: int
    step: int
    """Where it was noticed."""
    agreed: int
    """So many steps were committed when all were last known to hold the same."""
    what: str
    """That differs."""
    joined_at: int | None = None
    """Of a joiner: the step in which it met the others first, and gave nothing yet. None: a member says so."""
    is_at_start: bool = False
    """Nothing was trained yet."""


@dataclass(frozen=True)
class Verdict:
    """What follows."""

    distrust_after: int | None
    """Checkpoints of later steps do not count any more; None: all stand."""
    failure: str
    """What the job fails with; empty: it goes on."""


def decide_divergence(alarm: Alarm, last: Alarm | None) -> Verdict:
    """What follows from an alarm.

    Args:    last: the alarm before; None: there was none, or it is overcome.
    """
    distrust_after: int | None = alarm.agreed
    if alarm.joined_at is not None:  # its first part of a checkpoint is of the end of that step
        distrust_after = alarm.joined_at if alarm.step > alarm.joined_at else None
    if alarm.is_at_start:
        advice = (
            "Build model and optimizer inside train(), after Rubato has seeded the generators, and from nothing "
            "that differs between processes (time, pid, os.urandom, the order of a set). Nor may a forward pass write "
            "into parameters by way of `.data`: what it changes is a buffer."
        )
    elif last is not None and _is_again(alarm, last):
        advice = (
            "Something that influences training is not registered with run.register, or a layer is not deterministic."
        )
    else:
        return Verdict(distrust_after, "")
    return Verdict(distrust_after, f"The {alarm.what} differ between the workers at step {alarm.step}. {advice}")


def _is_again(alarm: Alarm, last: Alarm) -> bool:
    if last.joined_at is not None:
        # A member that differs after a joiner did is what the joiner saw: the members compared their states then.
        return alarm.joined_at is not None
    return alarm.agreed < last.step


class Divergences:
    """Remembers the last alarm of the job."""

    def __init__(self) -> None:
        self._last: Alarm | None = None

    def on_alarm(self, alarm: Alarm) -> Verdict | None:
        """What follows; None: another worker said so of the same exchange."""
        last = self._last
        if last is not None and (last.generation, last.step) == (alarm.generation, alarm.step):
            return None
        self._last = alarm
        return decide_divergence(alarm, last)

    def on_joined(self) -> None:
        """A joiner was found to agree: what made another one differ is overcome."""
        if self._last is not None and self._last.joined_at is not None:
            self._last = None
