"""What Ray Train's own controller tells the controller of the job. Lives in that actor; each driver has one."""

from __future__ import annotations

import math
import numbers
import os
import time
from typing import TYPE_CHECKING, Any

from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback

from jobs.ray_train.files import RunFiles
from jobs.ray_train.line import Line
from jobs.ray_train.messages import (
    CheckpointSeen,
    GroupStarted,
    GroupStarting,
    Member,
    Remembered,
    Reported,
    WorkerError,
    WorkersFailed,
)
from jobs.ray_train.steps import NO_SNAPSHOT, StepCount

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.context import TrainRunContext
    from ray.train.v2._internal.execution.training_report import _TrainingReport
    from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupContext, WorkerGroupPollStatus
    from ray.train.v2.api.result import Result

FLUSH_S = 30.0
ABORT_FLUSH_S = 2.0
EXIT_STALE = 72


class Watch(ControllerCallback, WorkerGroupCallback, ReportCallback):
    """Counts the steps, and tells what happens."""

    def __init__(self, job_id: str, attempt: int, run: int) -> None:
        self._place = (job_id, attempt, run)
        self._files: RunFiles | None = None
        self._line: Line | None = None
        self._steps = StepCount(attempt, (), NO_SNAPSHOT)

    # --- called by Ray Train --------------------------------------------------------------------

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Find out where the run goes on."""
        self._files = RunFiles(train_run_context.run_config.storage_context)
        snapshot = self._files.snapshot()
        self._steps = StepCount(self._place[1], self._files.records(), snapshot, self._files.reports())
        self._files.remove_unfinished(snapshot)
        # A run that does not count any more must write no checkpoint: this process leads it, and is ended.
        self._line = Line(*self._place, on_stale=lambda: os._exit(EXIT_STALE))
        if self._steps.reports:
            self._say(Remembered(self._steps.reports))

    def before_worker_group_start(self, worker_group_context: WorkerGroupContext) -> None:
        """A group is wanted."""
        self._say(GroupStarting(worker_group_context.num_workers, self._steps.begin_group()))

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        """All its processes are there."""
        members = []
        for worker in worker_group.get_workers():
            assert worker.distributed_context is not None
            seen = worker.metadata
            members.append(Member(worker.distributed_context.world_rank, seen.pid, seen.hostname, seen.node_id))
        self._say(GroupStarted(tuple(members)))

    def after_report(self, training_report: _TrainingReport, metrics: list[dict[str, Any]]) -> None:
        """All workers have reported; a checkpoint is on the storage, and Ray Train has written that down."""
        assert self._files is not None
        step = self._steps.report()
        seen: CheckpointSeen | None = None
        deleted: tuple[str, ...] = ()
        if training_report.checkpoint is not None:
            folder = training_report.checkpoint.path.rstrip("/").rpartition("/")[2]
            record, deleted = self._steps.keep(folder, self._files.snapshot())
            seen = self._files.describe(record, training_report.checkpoint)
        report = Reported(step, time.time(), numbers_of(metrics[0]), len(metrics), seen, deleted)
        self._steps.remember(report)
        if seen is not None:
            self._files.keep(self._steps.records, self._steps.reports)
        self._say(report)

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        """Workers failed."""
        statuses = worker_group_status.worker_statuses
        errors = [(rank, one.error) for rank, one in sorted(statuses.items()) if one.error is not None]
        if errors:
            self._say(WorkersFailed(tuple(describe_error(rank, error) for rank, error in errors)))

    def after_controller_finish(self, result: Result) -> None:
        """The last call: all is told before the driver ends."""
        self._close(FLUSH_S)

    def before_controller_abort(self) -> None:
        """The driver was told to stop."""
        self._close(ABORT_FLUSH_S)

    # --- the line -------------------------------------------------------------------------------

    def _say(self, message: object) -> None:
        if self._line is not None:
            self._line.put(message)

    def _close(self, timeout_s: float) -> None:
        if self._line is not None:
            self._line.close(timeout_s)


def numbers_of(metrics: dict[str, Any]) -> dict[str, float]:
    """What of a worker's metrics can be drawn: finite numbers, also those of numpy and torch that say so."""
    found = {}
    for name, value in metrics.items():
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
            found[str(name)] = float(value)
    return found


def describe_error(rank: int, error: Exception) -> WorkerError:
    """Why a worker failed: its function raised, or it is gone."""
    if not isinstance(error, UserExceptionWithTraceback):
        lines = str(error).strip().splitlines()
        return WorkerError(rank, is_death=True, error=_cause(error) or (lines[0][:300] if lines else ""))
    raised = error._base_exc
    kind = type(raised).__name__
    text = f"{kind}: {raised}" if str(raised) else kind
    return WorkerError(rank, is_death=False, error=text[:2000], traceback=str(error))


def _cause(error: Exception) -> str:
    """The kind of a worker's death in a line."""
    cause = getattr(error, "health_check_failure", None)
    return f"its process ended ({type(cause).__name__})" if cause is not None else ""
