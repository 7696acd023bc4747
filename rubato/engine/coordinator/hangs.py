"""Which workers make no progress. Pure; deadlines come from what the stages of this run took so far.

one computes, others wait     it is fenced once its stage takes much longer than that stage ever does
all compute                   nobody waits for anybody: the machine is slow, or all hang alike; more patience
one does not run at all       stopped, or its interpreter lock is held, while it should only wait: fenced
one never says anything       it stands still before its program is even loaded: fenced
a joiner does not catch up    it waits for results that the members have long completed: fenced, they go on
all wait for each other       a message was lost, or one left out an exchange: revoked, nobody is fenced
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rubato.engine.coordinator.roster import WorkerView
from rubato.wire.spec import LEAST_HANG_TIMEOUT_S
from rubato.wire.worker import Beat

WAITING_STAGES = frozenset({"exchange", "enter", "sync"})
"""In these a worker waits for its peers: it is never at fault for how long they take."""
IDLE_STAGES = frozenset({"standby", "done"})
"""In these it waits for the controller."""
SLOW_STAGES = frozenset({"setup", "first_batch", "evaluate", "checkpoint", "sync"})
"""These may take long without anything being wrong."""
QUICK_STAGES = frozenset({"fetch", "compute"})
"""One microbatch."""
MAX_LENIENCE = 16.0


@dataclass(frozen=True)
class HangPolicy:
    """Deadlines in seconds: a floor for each kind of stage, or `factor` times what it usually takes."""

    stage_s: float = 20.0
    """For one microbatch. A machine that swaps or is shared must not cost a worker; a false alarm costs a recovery."""
    other_s: float = 60.0
    """For the user's code between two steps, for an exchange, and for entering a generation."""
    slow_s: float = 600.0
    """For stages that are slow by nature, and for those that were not measured yet."""
    silence_s: float = 30.0
    """For a supervisor that says nothing."""
    factor: float = 8.0
    """0: the floors are the deadlines."""
    patience: float = 4.0
    """Times the deadline, where no worker waits for another."""

    @classmethod
    def fixed(cls, seconds: float) -> HangPolicy:
        """As the user says: nothing is learned. What is slow by nature has the default, where that is longer."""
        return cls(
            stage_s=seconds,
            other_s=seconds,
            slow_s=max(cls.slow_s, seconds),
            silence_s=max(LEAST_HANG_TIMEOUT_S, min(cls.silence_s, seconds)),
            factor=0.0,
            patience=1.0,
        )

    def deadline_s(self, stage: str, usual: Mapping[str, float]) -> float:
        """How long a stage may take.

        Args: usual: a high quantile of the durations of each stage that was measured.
        """
        if stage == "long_phase":
            return math.inf  # the program says that it is no hang
        if stage in SLOW_STAGES:
            return max(self.slow_s, self.factor * usual.get(stage, 0.0))
        floor = self.stage_s if stage in QUICK_STAGES else self.other_s
        if not self.factor or stage == "enter":
            return floor
        if stage not in usual:
            return self.slow_s
        return max(floor, self.factor * usual[stage])


@dataclass(frozen=True)
class Hung:
    """A worker to fence, and why."""

    incarnation: str
    because: str
    stage: str = ""
    step: int = 0
    microbatch: int | None = None
    seconds: float = 0.0
    limit_s: float = 0.0

    @property
    def facts(self) -> dict[str, object]:
        """For the event."""
        return {
            "stage": self.stage,
            "step": self.step,
            "microbatch": self.microbatch,
            "seconds": round(self.seconds, 1),
            "limit_seconds": round(self.limit_s, 1),
        }


@dataclass
class Lenience:
    """After each fence at a stage the next one there comes later: a deadline that was wrong must not clear the job."""

    by_stage: dict[str, float] = field(default_factory=dict)

    def of(self, stage: str) -> float:
        """Times the deadline."""
        return self.by_stage.get(stage, 1.0)

    def grow(self, stage: str) -> None:
        """A worker was fenced there."""
        self.by_stage[stage] = min(MAX_LENIENCE, 2.0 * self.of(stage))


def usual_of(workers: Sequence[WorkerView]) -> dict[str, float]:
    """What each stage usually takes: the slowest worker counts."""
    usual: dict[str, float] = {}
    for worker in workers:
        for stage, seconds in worker.beat.usual.items() if worker.beat is not None else ():
            usual[stage] = max(usual.get(stage, 0.0), seconds)
    return usual


def decide_hung(
    workers: Sequence[WorkerView],
    policy: HangPolicy,
    now: float,
    *,
    lenience: Lenience | None = None,
    revoked: Collection[str] = (),
    revoked_s: float = 0.0,
) -> list[Hung]:
    """The workers to fence.

    Args:
        workers: all that live.
        policy: the deadlines.
        now: the time.
        lenience: how much more time stages get at which somebody was fenced.
        revoked: workers that have not left a revoked generation yet.
        revoked_s: seconds since they were told to.
    """
    usual, lenience = usual_of(workers), lenience or Lenience()
    beats = [one.beat for one in workers if one.beat is not None]
    waits = [(one.generation, one.stage_seconds) for one in beats if one.stage in WAITING_STAGES]
    ahead = max((one.step for one in beats), default=0)
    found = []
    for worker in workers:
        beat = worker.beat
        if worker.doom:
            continue
        silence = now - worker.heard_at
        if worker.hello is None and beat is None:
            # It imports torch, or waits for a slot: nothing can be told of how far it is.
            if worker.is_placed and silence > policy.slow_s:
                because = (
                    f"it had said nothing {silence:.0f} s after its start; the limit there is {policy.slow_s:.0f} s"
                )
                found.append(Hung(worker.incarnation, because, seconds=silence, limit_s=policy.slow_s))
        elif silence > policy.silence_s:
            found.append(Hung(worker.incarnation, f"no sign of life for {silence:.0f} s", seconds=silence))
        elif beat is not None and beat.stage in WAITING_STAGES | IDLE_STAGES:
            limit = policy.stage_s * lenience.of(beat.stage)
            sync_limit = policy.deadline_s("sync", usual) * lenience.of("sync")
            if beat.silent_seconds > limit:
                found.append(_hung(worker, beat, "did not run", beat.silent_seconds, limit))
            elif beat.stage == "sync" and ahead > beat.step + 1 and beat.stage_seconds > sync_limit:
                found.append(_hung(worker, beat, "was not brought up to date", beat.stage_seconds, sync_limit))
            elif worker.incarnation in revoked and min(revoked_s, beat.stage_seconds) > policy.other_s:
                found.append(_hung(worker, beat, "did not leave a revoked generation", revoked_s, policy.other_s))
        elif beat is not None:
            limit = policy.deadline_s(beat.stage, usual) * lenience.of(beat.stage)
            if beat.stage == "long_phase" and beat.silent_seconds > policy.slow_s:
                found.append(_hung(worker, beat, "did not run", beat.silent_seconds, policy.slow_s))
            # A joiner is in no generation yet, and may be what all members of one wait for.
            joins = beat.generation == 0 and worker.standby is not None
            is_waited_for = beat.stage in SLOW_STAGES or any(
                (joins or number == beat.generation) and seconds > limit for number, seconds in waits
            )
            if beat.stage_seconds > limit * (1.0 if is_waited_for else policy.patience):
                found.append(_hung(worker, beat, "made no progress", beat.stage_seconds, limit))
    return found


def _hung(worker: WorkerView, beat: Beat, what: str, seconds: float, limit: float) -> Hung:
    place = describe_place(beat)
    is_silent = what != "did not run" and beat.silent_seconds > seconds / 2
    runs = ", and its interpreter did not run" if is_silent else ""
    because = f"{what} for {seconds:.0f} s{runs}, in {place}; the limit there is {limit:.0f} s"
    return Hung(worker.incarnation, because, beat.stage, beat.step, beat.microbatch, seconds, limit)


def describe_place(beat: Beat) -> str:
    """`compute, microbatch 3 of step 12`."""
    stage = beat.stage.replace("_", " ")
    if beat.microbatch is not None:
        return f"{stage}, microbatch {beat.microbatch} of step {beat.step}"
    return f"{stage}, step {beat.step}" if beat.generation else stage


@dataclass(frozen=True)
class Stuck:
    """All members wait, and none of them for anything that will come."""

    because: str
    is_unequal: bool = False
    """Some have gone through all exchanges of the program, and others wait in one more."""


def decide_stuck(workers: Sequence[WorkerView], policy: HangPolicy, minted_s: float) -> Stuck | None:
    """Whether all members wait for each other past the deadline, so that the generation must be revoked.

    A message was lost; or one waits in an exchange that another, which is through with the program, never entered.

    Args:
        workers: the members of the newest generation, whether they train in it, enter it or form it.
        policy: the deadlines.
        minted_s: seconds since it was minted.
    """
    usual = usual_of(workers)
    waiting, done = [], []
    for worker in workers:
        beat = worker.beat
        if beat is None or worker.doom or beat.stage not in WAITING_STAGES | IDLE_STAGES:
            return None
        if beat.stage == "done":
            done.append(worker.worker_id)
            continue
        stage = "enter" if beat.stage == "standby" else beat.stage
        if min(beat.stage_seconds, minted_s) <= policy.deadline_s(stage, usual):
            return None
        waiting.append(f"{worker.worker_id} ({describe_place(beat)})")
    if not waiting:
        return None
    if not done:
        return Stuck("all workers waited for each other past the deadline")
    return Stuck(f"{', '.join(done)} had ended the program, and {', '.join(waiting)} waited for it", is_unequal=True)
