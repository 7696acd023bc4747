"""Counters and histograms of this process. No label names a job: there are too many, and each has its own chart."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from rubato.wire.cluster import EventReport
from rubato.wire.events import EventKind
from rubato.wire.status import Status

CAUSES = frozenset({"start", "scale_up", "scale_down", "recovery", "replace", "restart", "rebalance"})

REGISTRY = CollectorRegistry()
REQUESTS = Histogram(
    "rubato_http_request_seconds",
    "Seconds until a reply began; long polls and `?wait=` wait on purpose.",
    ["method", "route", "status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
ROUNDS = Histogram(
    "rubato_scheduler_round_seconds",
    "Seconds of a round of the scheduling loop.",
    ["result"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15),
    registry=REGISTRY,
)
TRANSITIONS = Counter("rubato_job_transitions", "Jobs that entered a status.", ["status"], registry=REGISTRY)
QUEUE_WAITS = Histogram(
    "rubato_queue_wait_seconds",
    "Seconds a job waited for slots.",
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
    registry=REGISTRY,
)
STEPS = Counter("rubato_steps", "Steps committed, those trained again after a loss among them.", registry=REGISTRY)
REPLICA_NOTICES = Counter("rubato_replica_notices", "Notifications that came from other replicas.", registry=REGISTRY)
GENERATIONS = Counter(
    "rubato_generations", "Memberships formed: scalings, recoveries, restarts, ...", ["cause"], registry=REGISTRY
)
PAUSES = Histogram(
    "rubato_pause_seconds",
    "Seconds that training stood still for a change of membership.",
    ["cause"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
    registry=REGISTRY,
)
WORKERS_LOST = Counter("rubato_workers_lost", "Workers that died or were fenced.", registry=REGISTRY)
CHECKPOINTS = Counter("rubato_checkpoints", "Checkpoints by what became of them.", ["result"], registry=REGISTRY)
SWEPT = Counter(
    "rubato_swept", "What the sweep removed: of deleted and old jobs, and what is old.", ["what"], registry=REGISTRY
)
SWEEP_FAILURES = Counter("rubato_sweep_failures", "Jobs that a round of the sweep could not finish.", registry=REGISTRY)
SWEEPS = Histogram(
    "rubato_sweep_round_seconds",
    "Seconds of a round of the sweep.",
    buckets=(0.001, 0.01, 0.1, 1, 10, 60, 600),
    registry=REGISTRY,
)

DELIVERIES = Counter(
    "rubato_webhook_deliveries",
    "Tries to deliver to webhooks: delivered, pending (is tried again), failed (given up).",
    ["result"],
    registry=REGISTRY,
)

_CHECKPOINT_RESULTS = {
    EventKind.CHECKPOINT_COMMITTED: "committed",
    EventKind.CHECKPOINT_FAILED: "failed",
    EventKind.CHECKPOINT_CORRUPT: "corrupt",
    EventKind.CHECKPOINT_DELETED: "deleted",
}


def count_transition(to: Status, waited_s: float | None) -> None:
    """Count a job that entered a status; `waited_s`: how long it was queued, where it leaves the queue to start."""
    TRANSITIONS.labels(str(to)).inc()
    if waited_s is not None:
        QUEUE_WAITS.observe(max(0.0, waited_s))


def count_report(events: Sequence[EventReport], *, steps: int) -> None:
    """Count what a controller reported: its new events, and how many steps further it is (less than 0: a restart)."""
    STEPS.inc(max(0, steps))
    for event in events:
        if event.kind == EventKind.GENERATION_FORMED:
            cause = event.data.get("cause")
            label = cause if cause in CAUSES else "other"
            GENERATIONS.labels(label).inc()
            paused = event.data.get("paused_seconds")
            if isinstance(paused, (int, float)) and 0 <= paused < float("inf"):
                PAUSES.labels(label).observe(paused)
        elif event.kind == EventKind.WORKER_LOST:
            WORKERS_LOST.inc()
        elif event.kind in _CHECKPOINT_RESULTS:
            times = event.data.get("times", 1)  # one of several that failed alike tells of all
            count = times if isinstance(times, int) and times > 0 else 1
            CHECKPOINTS.labels(_CHECKPOINT_RESULTS[EventKind(event.kind)]).inc(count)
