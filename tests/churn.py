"""Seeded disturbances of a run that trains: scalings, kills, stops; what they were, as one line each."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from local_job import LocalJob

SWINGS = (8, 3, 5, 1)
"""Worker counts, in turns."""


@dataclass(frozen=True)
class Deed:
    """What was done to a run, in words, and how many of its processes were killed by it."""

    told: str
    killed: int = 0


def churn(run: LocalJob, dice: random.Random, *, until: int, most: int = 4) -> Iterator[Deed]:
    """Disturb it every few steps until so many are committed.

    Args:    most: workers.
    """
    at = 3
    while at < until:
        run.wait_step(at)
        members = [one["pid"] for one in run.members()]
        killed, deed = 0, dice.choices(("scale", "kill", "stop", "save"), (5, 4, 1, 1))[0]
        if deed == "scale":
            workers = dice.randint(1, most)
            run.scale(workers)
            told = f"scale to {workers}"
        elif deed == "save":
            run.run.answer({"verb": "checkpoint"})
            told = "checkpoint"
        else:
            # All but one at most, save one time in ten; then the newest checkpoint must be good enough.
            high = len(members) if dice.random() < 0.1 else max(1, len(members) - 1)
            chosen = dice.sample(members, min(len(members), dice.randint(1, high)))
            number = signal.SIGKILL if deed == "kill" else signal.SIGSTOP
            gone = [pid for pid in chosen if not _signal(pid, number)]
            killed = len(chosen) - len(gone) if deed == "kill" else 0
            told = f"{deed} {len(chosen) - len(gone)} of {len(members)}" + f" ({len(gone)} were gone)" * bool(gone)
            if deed == "stop":
                wait_s = dice.random()
                run.wait_seconds(wait_s)
                for pid in chosen:
                    _signal(pid, signal.SIGCONT)
                told += f" for {wait_s:.1f} s"
        yield Deed(f"step {run.step}: {told}", killed)
        at = run.step + dice.randint(2, 6)


def swing(run: LocalJob, *, until: int, every: int = 5) -> Iterator[Deed]:
    """Scale 1 -> 8 -> 3 -> 5 -> 1, on and on, every few steps, whether the last wish came true or not."""
    at, turn = every, 0
    while at < until:
        run.wait_step(at)
        workers = SWINGS[turn % len(SWINGS)]
        run.scale(workers)
        yield Deed(f"step {run.step}: scale to {workers}")
        at, turn = run.step + every, turn + 1


def check_effects(run: LocalJob, done: Sequence[Deed], *, kills: bool = True) -> None:
    """That what was done took effect: a run that nothing happened to proves nothing.

    Args:   kills: whether some must have been killed.
    Raises: AssertionError: nobody was, or those were not lost; no scaling came true.
    """
    told, killed = [one.told for one in done], sum(one.killed for one in done)
    assert killed > 0 or not kills, f"nobody was killed: {told}"
    # One that was to leave at that moment may have gone as planned.
    assert len(run.events("worker.lost")) >= killed / 2, told
    causes = {event["data"]["cause"] for event in run.formed()}
    assert causes & {"scale_up", "scale_down"}, f"no scaling came true: {told}"


def swing_and_kill(run: LocalJob, dice: random.Random, *, until: int, every: int = 5) -> Iterator[Deed]:
    """The same, but each wish comes true before the next; in between some members are killed, one time in three."""
    run.wait_step(every)
    for workers in itertools.cycle(SWINGS):
        run.scale(workers)
        run.wait(lambda count=workers: _is_there(run, count) or run.step >= until, f"{workers} workers")
        if run.step >= until:
            return
        yield Deed(f"{workers} workers train")
        if dice.random() < 1 / 3:
            members = [one["pid"] for one in run.members()]
            chosen = dice.sample(members, dice.randint(1, max(1, len(members) - 1)))
            killed = sum(_signal(pid, signal.SIGKILL) for pid in chosen)
            yield Deed(f"{killed} of {len(members)} were killed", killed)
        run.wait_step(run.step + every)


def _is_there(run: LocalJob, workers: int) -> bool:
    return run.status()["observed"]["workers"] == workers == len(run.members())


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
