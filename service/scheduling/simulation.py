"""The scheduler against a simulated cluster: the same decision as the service's, on a clock that is stepped by hand.

Property tests drive it with random jobs, and `scripts/scheduling_trace.py` writes a recorded run into the documents.
Processes are played with their delays: a worker takes a while to join, to leave, and a pause a while to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from rubato.wire.spec import Autoscale
from service.scheduling.capacity import ClusterView, NodeView, Shape
from service.scheduling.decide import decide
from service.scheduling.sharing import speedup
from service.scheduling.view import Decision, Fail, Keep, Placed, Preempt, Resize, Start, View, Wait, Waiting, ranked_at

BEGIN = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
CLUSTER = "default"


@dataclass(frozen=True, kw_only=True)
class Script:
    """A job as its user plays it."""

    name: str
    at_s: float = 0
    """When it is submitted."""
    work_s: float = 60
    """Seconds that one worker would train."""
    min_workers: int = 1
    wish: int = 1
    max_workers: int = 1
    standby: int = 0
    priority: int = 50
    is_preemptible: bool = True
    autoscale: Autoscale = "off"
    num_microbatches: int = 12
    scales: tuple[tuple[float, int], ...] = ()
    """Moments in seconds, and the number of workers that the user wants from then on."""
    project: str = "default"
    overhead: float = 0.0
    """What each worker beyond the first costs of a single one's speed."""


@dataclass(frozen=True)
class Delays:
    """What things take."""

    start_s: float = 5
    join_s: float = 4
    leave_s: float = 2
    save_s: float = 3


@dataclass(frozen=True)
class Entry:
    """A line of the trace."""

    at_s: float
    name: str
    what: str
    because: str
    grants: tuple[tuple[str, int], ...]
    """Who was granted how many slots just after."""


@dataclass
class _Life:
    """A job in the simulation."""

    script: Script
    queued_at: datetime
    done_s: float = 0
    wish: int = 0
    wished_at: datetime | None = None
    granted: int = 0
    standby: int = 0
    held: int = 0
    placed_at: datetime | None = None
    granted_at: datetime | None = None
    changes_at: datetime | None = None
    """When its processes are as granted."""
    is_pausing: bool = False
    is_over: bool = False
    is_backfilled: bool = False
    rank: datetime | None = None
    """Its place in the queue, where it is another than that of its age."""
    pauses: int = 0
    rates: dict[int, float] = field(default_factory=dict)
    said: str = ""


class Simulation:
    """One cluster, some jobs, and a clock."""

    def __init__(
        self,
        slots: Sequence[int],
        scripts: Sequence[Script],
        delays: Delays = Delays(),
        max_slots: Mapping[str, int] | None = None,
    ) -> None:
        self.now = BEGIN
        self.slots = tuple(slots)
        self.max_slots = dict(max_slots or {})
        self.trace: list[Entry] = []
        self.decisions: list[Decision] = []
        """Of the last round."""
        self._delays = delays
        self._scripts = list(scripts)
        self._lives: dict[str, _Life] = {}

    @property
    def at_s(self) -> float:
        """Seconds since the beginning."""
        return (self.now - BEGIN).total_seconds()

    @property
    def grants(self) -> tuple[tuple[str, int], ...]:
        """Who is granted how many slots."""
        lives = sorted(self._lives.items())
        return tuple((name, life.granted + life.standby) for name, life in lives if life.placed_at is not None)

    @property
    def taken(self) -> int:
        """Slots that processes take or may take."""
        lives = self._lives.values()
        return sum(max(life.held, life.granted + life.standby) for life in lives if life.placed_at is not None)

    @property
    def unfinished(self) -> list[str]:
        """Jobs that have not ended."""
        over = {name for name, life in self._lives.items() if life.is_over}
        return [script.name for script in self._scripts if script.name not in over]

    def run(self, until_s: float, step_s: float = 1) -> None:
        """Step until all jobs have ended, or until a moment."""
        while self.unfinished and self.at_s < until_s:
            self.step(step_s)

    def step(self, step_s: float = 1) -> None:
        """Let users, processes and then the scheduler act, and the clock go on."""
        self._submit()
        for name, life in self._lives.items():
            self._live(name, life, step_s)
        self.decisions = decide(self.view(), self.now)
        for decision in self.decisions:
            self._apply(decision)
        self.now += timedelta(seconds=step_s)

    def view(self) -> View:
        """What the scheduler sees."""
        nodes = tuple(NodeView(f"node-{index + 1}", count, 0) for index, count in enumerate(self.slots))
        open_lives = [(name, life) for name, life in sorted(self._lives.items()) if not life.is_over]
        return View(
            clusters=(ClusterView(CLUSTER, nodes),),
            placed=tuple(_placed(name, life) for name, life in open_lives if life.placed_at is not None),
            waiting=tuple(_waiting(name, life) for name, life in open_lives if life.placed_at is None),
            max_slots=self.max_slots,
        )

    def _submit(self) -> None:
        for script in self._scripts:
            if script.name not in self._lives and script.at_s <= self.at_s:
                self._lives[script.name] = _Life(script, self.now, wish=script.wish)

    def _live(self, name: str, life: _Life, step_s: float) -> None:
        for moment, wish in life.script.scales:
            if moment <= self.at_s and (life.wished_at is None or (life.wished_at - BEGIN).total_seconds() < moment):
                life.wish, life.wished_at = wish, self.now
        if life.placed_at is None or life.is_over:
            return
        if life.changes_at is not None and self.now >= life.changes_at:
            life.changes_at = None
            if life.is_pausing:
                life.rank = _ranked(life) if life.is_backfilled else None
                life.queued_at = self.now
                self._leave(life)
                return
            life.held = life.granted + life.standby
        if life.held and not life.is_pausing:
            workers = min(life.held, life.granted)
            rate = speedup(life.script.num_microbatches, workers) * (1 - life.script.overhead) ** (workers - 1)
            life.done_s += step_s * rate
            life.rates[workers] = rate
        if life.done_s >= life.script.work_s:
            self._leave(life)
            life.is_over = True
            self._tell(name, "succeeded", "it trained to its end")

    def _leave(self, life: _Life) -> None:
        life.placed_at = life.granted_at = life.changes_at = None
        life.granted = life.standby = life.held = 0
        life.is_pausing = life.is_backfilled = False
        life.said = ""

    def _apply(self, decision: Decision) -> None:
        life = self._lives[decision.job_id]
        match decision:
            case Start():
                life.placed_at = life.granted_at = self.now
                life.granted, life.standby = decision.workers, decision.standby
                life.is_backfilled = decision.is_backfilled
                life.changes_at = self.now + timedelta(seconds=self._delays.start_s)
            case Resize():
                is_less = decision.workers + decision.standby < life.held
                delay_s = self._delays.leave_s if is_less else self._delays.join_s
                life.granted, life.standby, life.granted_at = decision.workers, decision.standby, self.now
                life.changes_at = self.now + timedelta(seconds=delay_s)
            case Preempt():
                life.is_pausing = True
                life.pauses += 1
                life.changes_at = self.now + timedelta(seconds=self._delays.save_s)
            case Fail():
                life.is_over = True
            case Wait() | Keep():
                pass
        if decision.because != life.said:
            life.said = decision.because
            self._tell(decision.job_id, _word(decision), decision.because)

    def _tell(self, name: str, what: str, because: str) -> None:
        self.trace.append(Entry(self.at_s, name, what, because, self.grants))


def _word(decision: Decision) -> str:
    match decision:
        case Start():
            return "goes first" if decision.is_backfilled else "starts"
        case Resize():
            return "resized"
        case Preempt():
            return "preempted"
        case Fail():
            return "failed"
        case Wait():
            return f"waits ({decision.position})"
        case Keep():
            return "keeps"


def _ranked(life: _Life) -> datetime:
    return life.rank or ranked_at(life.script.priority, life.queued_at)


def _waiting(name: str, life: _Life) -> Waiting:
    script = life.script
    return Waiting(
        job_id=name,
        name=name,
        shape=Shape(1, 0),
        min_workers=script.min_workers,
        max_workers=script.max_workers,
        wish=life.wish,
        standby=script.standby,
        priority=script.priority,
        is_preemptible=script.is_preemptible,
        autoscale=script.autoscale,
        num_microbatches=script.num_microbatches,
        project=script.project,
        queued_at=life.queued_at,
        kept_rank=life.rank,
    )


def _placed(name: str, life: _Life) -> Placed:
    script = life.script
    assert life.placed_at is not None
    assert life.granted_at is not None
    return Placed(
        job_id=name,
        name=name,
        shape=Shape(1, 0),
        min_workers=script.min_workers,
        max_workers=script.max_workers,
        wish=life.wish,
        standby=script.standby,
        priority=script.priority,
        is_preemptible=script.is_preemptible,
        autoscale=script.autoscale,
        num_microbatches=script.num_microbatches,
        project=script.project,
        is_backfilled=life.is_backfilled,
        ranked_at=_ranked(life),
        cluster_id=CLUSTER,
        granted=life.granted,
        granted_standby=life.standby,
        held=life.held,
        is_leaving=life.is_pausing,
        placed_at=life.placed_at,
        granted_at=life.granted_at,
        wished_at=life.wished_at,
        rates=dict(life.rates),
    )
