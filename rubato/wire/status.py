"""The coarse words users see, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What the controller is doing, finer than the status."""

    FORMING = "forming"
    TRAINING = "training"
    SCALING = "scaling"
    REPAIRING = "repairing"
    DRAINING = "draining"


class WorkerState(StrEnum):
    """What one worker is doing."""

    STARTING = "starting"
    WARMING = "warming"
    STANDBY = "standby"
    ACTIVE = "active"
    DRAINING = "draining"


FINAL: frozenset[Status] = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
"""Statuses that are written once and never left."""

S = Status
ALLOWED: dict[Status, frozenset[Status]] = {
    S.QUEUED: frozenset({S.STARTING, S.PAUSED, S.STOPPING, S.FAILED}),
    S.STARTING: frozenset({S.RUNNING, S.RECOVERING, S.QUEUED, S.PAUSING, S.STOPPING, S.FAILED}),
    S.RUNNING: frozenset({S.SUCCEEDED, S.FAILED, S.RECOVERING, S.PAUSING, S.STOPPING}),
    S.RECOVERING: frozenset({S.STARTING, S.QUEUED, S.FAILED, S.PAUSING, S.STOPPING}),
    S.PAUSING: frozenset({S.PAUSED, S.SUCCEEDED, S.FAILED, S.STOPPING}),
    S.PAUSED: frozenset({S.QUEUED, S.STOPPING}),
    S.STOPPING: frozenset({S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
"""From each status, those that may follow."""
