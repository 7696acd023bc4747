"""Actions on single workers as rows: asked for, listed to the controller until it answers, closed when the job leaves.

What is not answered yet stands in the job's own row too, so that polls of controllers read nothing else. One
transaction changes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.cluster import ActionAnswer, WorkerAction, WorkerReport
from rubato.wire.codec import from_json, to_json
from service.clock import optional_rfc3339, parse_rfc3339, to_rfc3339
from service.models import Job, WorkerActionRow
from service.notify import desired_topic, job_topic, notify

PENDING = "pending"
WITHDRAWN = "withdrawn"
MAX_TEXT_CHARS = 128 * 1024
MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True)
class Listed:
    """An action that is not answered yet, as it stands in the job's row."""

    number: int
    kind: str
    worker_id: str
    by: str
    due_at: str | None = None
    """Of a drain, RFC 3339: the worker is to be out by then; None: there is no hurry."""
    is_node_let_go: bool = False
    """Of a drain: the cluster itself takes the worker's node away, and the job was asked for a checkpoint."""

    @property
    def deadline(self) -> datetime | None:
        """`due_at` as a time."""
        return parse_rfc3339(self.due_at) if self.due_at else None

    def told(self, now: datetime) -> WorkerAction:
        """As a controller hears it: with the seconds that are left, whichever controller it is."""
        deadline = self.deadline
        left_s = None if deadline is None else max(0.0, round((deadline - now).total_seconds(), 1))
        return WorkerAction(self.number, self.kind, self.worker_id, self.by, left_s)


def listed(actions: Iterable[Mapping[str, Any]]) -> tuple[Listed, ...]:
    """What the actions in a job's row say."""
    return tuple(from_json(Listed, item) for item in actions)


async def find_newest(session: AsyncSession, job_id: str, worker_id: str, kind: str) -> WorkerActionRow | None:
    """The last action of a kind on a worker."""
    statement = select(WorkerActionRow).where(
        WorkerActionRow.job_id == job_id, WorkerActionRow.worker_id == worker_id, WorkerActionRow.kind == kind
    )
    return (await session.scalars(statement.order_by(WorkerActionRow.number.desc()).limit(1))).one_or_none()


async def add_action(
    session: AsyncSession,
    job: Job,
    kind: str,
    worker_id: str,
    *,
    by: str,
    now: datetime,
    node_id: str | None = None,
    due_at: datetime | None = None,
    is_node_let_go: bool = False,
) -> WorkerActionRow:
    """List another action; of stacks the worker's older ones are forgotten. The caller raises the version."""
    if kind == "stack":
        old = delete(WorkerActionRow).where(
            WorkerActionRow.job_id == job.id, WorkerActionRow.worker_id == worker_id, WorkerActionRow.kind == kind
        )
        await session.execute(old.execution_options(synchronize_session=False))
        job.desired_actions = [
            to_json(action)
            for action in listed(job.desired_actions)
            if (action.kind, action.worker_id) != (kind, worker_id)
        ]
    job.last_action += 1
    row = WorkerActionRow(
        job_id=job.id,
        number=job.last_action,
        worker_id=worker_id,
        kind=kind,
        by=by,
        node_id=node_id,
        state=PENDING,
        message="",
        text="",
        asked_at=now,
    )
    session.add(row)
    action = Listed(row.number, kind, worker_id, by, optional_rfc3339(due_at), is_node_let_go)
    job.desired_actions = [*job.desired_actions, to_json(action)]
    await session.flush()
    notify(session, desired_topic(job.id), job_topic(job.id))
    return row


def take_over_drain(session: AsyncSession, job: Job, row: WorkerActionRow, by: str) -> None:
    """A person wants what the drain of the worker's node has asked for: it stays also if that drain ends. The caller
    raises the version.
    """
    row.node_id, row.by = None, by
    job.desired_actions = [{**item, "by": by} if item["number"] == row.number else item for item in job.desired_actions]
    notify(session, desired_topic(job.id), job_topic(job.id))


def let_node_go(session: AsyncSession, job: Job, drain: Listed, due_at: datetime | None) -> None:
    """The node of a worker that is to leave goes as well, whether the worker has left or not. The caller raises the
    version.
    """
    deadlines = [one for one in (due_at, drain.deadline) if one is not None]
    changed = replace(drain, due_at=optional_rfc3339(min(deadlines, default=None)), is_node_let_go=True)
    job.desired_actions = [to_json(changed) if item["number"] == drain.number else item for item in job.desired_actions]
    notify(session, desired_topic(job.id), job_topic(job.id))


async def take_answers(
    session: AsyncSession, job: Job, answers: Iterable[ActionAnswer], workers: Iterable[WorkerReport], now: datetime
) -> None:
    """Store what came of actions. One on a worker that is reported no more is over, answered or not.

    An answer to what is not listed (it was withdrawn) changes nothing. The version stays: who answered knows.
    """
    if not job.desired_actions:
        return
    present = {worker.worker_id for worker in workers if worker.state != "gone"}
    answered = {answer.number: answer for answer in answers}
    for action in listed(job.desired_actions):
        answer = answered.get(action.number)
        if answer is None and action.worker_id not in present:
            answer = ActionAnswer(action.number, "gone", f"{action.worker_id} is no worker of the job any more")
        if answer is not None:
            await _close(session, job, [action.number], answer.state, answer.message, now, answer.text)


async def withdraw_drains(session: AsyncSession, job: Job, node_id: str, now: datetime) -> None:
    """Take back the drains that a node's drain had asked for."""
    statement = select(WorkerActionRow.number).where(
        WorkerActionRow.job_id == job.id, WorkerActionRow.node_id == node_id, WorkerActionRow.state == PENDING
    )
    numbers = list((await session.scalars(statement)).all())
    if numbers:
        await _close(session, job, numbers, WITHDRAWN, "the node takes work again", now)
        job.desired_version += 1
        notify(session, desired_topic(job.id))


async def close_all(session: AsyncSession, job: Job, because: str, now: datetime) -> None:
    """The job has left the cluster: nobody answers any more."""
    numbers = [action.number for action in listed(job.desired_actions)]
    if numbers:
        await _close(session, job, numbers, "gone", because, now)


async def _close(
    session: AsyncSession, job: Job, numbers: list[int], state: str, message: str, now: datetime, text: str = ""
) -> None:
    statement = (
        update(WorkerActionRow)
        .where(WorkerActionRow.job_id == job.id, WorkerActionRow.number.in_(numbers))
        .where(WorkerActionRow.state == PENDING)
        .values(
            state=state,
            message=_storable(message)[:MAX_MESSAGE_CHARS],
            text=_storable(text)[:MAX_TEXT_CHARS],
            finished_at=now,
        )
    )
    await session.execute(statement.execution_options(synchronize_session=False))
    job.desired_actions = [item for item in job.desired_actions if item["number"] not in numbers]
    notify(session, job_topic(job.id))


def _storable(text: str) -> str:
    """PostgreSQL takes no NUL in text."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def action_json(row: WorkerActionRow) -> dict[str, Any]:
    """An action as the API shows it."""
    return {
        "job_id": row.job_id,
        "number": row.number,
        "worker_id": row.worker_id,
        "kind": row.kind,
        "by": row.by,
        "state": row.state,
        "message": row.message,
        "asked_at": to_rfc3339(row.asked_at),
        "finished_at": optional_rfc3339(row.finished_at),
    }
