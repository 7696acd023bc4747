"""Which workers make no progress. Pure: the deadlines of this release are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rubato.engine.coordinator.roster import WorkerView

SLOW_STAGES = frozenset({"setup", "standby", "evaluate", "checkpoint", "long_phase", "done"})
"""Stages that may take long without anything being wrong."""
WAITING_STAGES = frozenset({"exchange", "enter"})


@dataclass(frozen=True)
class HangPolicy:
    """Deadlines in seconds."""

    stage_s: float = 30.0
    """For one microbatch, and for the silence of a worker's heartbeat."""
    first_step_s: float = 600.0
    """For the first step (compilation, caches) and the slow stages."""


@dataclass(frozen=True)
class Hung:
    """A worker to fence, and why."""

    incarnation: str
    because: str


def decide_hung(workers: Sequence[WorkerView], policy: HangPolicy, first_step: int, now: float) -> list[Hung]:
    """The workers to fence: silent ones, and those that compute for too long.

    Args: first_step: the step at which the present generation began; a worker still in it has the longer deadline.
    """
    found = []
    for worker in workers:
        beat = worker.beat
        if worker.hello is None or worker.doom:
            continue
        silence = now - worker.heard_at
        is_first = worker.standby is None or worker.step <= first_step
        if silence > policy.stage_s:
            found.append(Hung(worker.incarnation, f"no sign of life for {silence:.0f} s"))
        elif beat is not None and beat.stage not in WAITING_STAGES:
            limit = policy.first_step_s if is_first or beat.stage in SLOW_STAGES else policy.stage_s
            if beat.stage not in ("standby", "done") and beat.stage_seconds > limit:
                found.append(Hung(worker.incarnation, f"{beat.stage} for {beat.stage_seconds:.0f} s"))
    return found


def decide_stuck(workers: Sequence[WorkerView], policy: HangPolicy) -> bool:
    """Whether all members wait for each other past the deadline (a lost message): the generation must be revoked."""
    beats = [worker.beat for worker in workers]
    return bool(beats) and all(
        beat is not None and beat.stage in WAITING_STAGES and beat.stage_seconds > policy.stage_s for beat in beats
    )
