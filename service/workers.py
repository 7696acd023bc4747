"""Drain, kill and look into single workers: wishes that the controller's poll brings and its report confirms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from rubato.wire.status import Status
from service.attempts import list_workers
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.jobs import find
from service.models import Job, WorkerActionRow
from service.notify import job_topic
from service.requests import Asked, answer_once, check_edition
from service.states import WITH_CONTROLLER
from service.wishes import record_wish, refuse_final
from service.worker_actions import PENDING, action_json, add_action, find_newest, take_over_drain

Kind = Literal["drain", "kill"]
STACK_FRESH = timedelta(seconds=5)
"""A stack that is so young answers the next question too: many who look do not stop the process for each."""
STACK_OVERDUE = timedelta(minutes=1)
"""One that was asked for so long ago is asked for anew: its answer may have been given up with a refused report."""
_EVENTS: dict[Kind, EventKind] = {"drain": EventKind.DRAIN_REQUESTED, "kill": EventKind.KILL_REQUESTED}
_ASKED: dict[Kind, str] = {"drain": "asked {worker} to leave", "kill": "had {worker} killed"}


@dataclass(frozen=True)
class Acted:
    """An action after a request, and whether the request made it."""

    action: dict[str, Any]
    is_new: bool


@dataclass(frozen=True)
class Stack:
    """Stacks of a worker; `text` is empty while they are awaited."""

    text: str
    is_there: bool


async def act(context: Context, reference: str, worker_id: str, kind: Kind, *, asked: Asked) -> Acted:
    """Want a worker drained or killed. Asking again for what is under way or done changes nothing; a drain that is
    under way for the worker's node becomes the caller's own.

    Raises:
        ServiceError: not_found (no such job, or no such worker now), job_final, conflict (the job has no workers),
            precondition_failed, idempotency_mismatch.
    """

    async def run(session: AsyncSession) -> dict[str, Any]:
        job = await find(session, reference, for_update=True)
        check_edition(job, asked.if_match)
        refuse_final(job, f"told to {kind} a worker")
        newest = await find_newest(session, job.id, worker_id, kind)
        is_for_node = newest is not None and newest.state == PENDING and newest.node_id is not None
        if newest is not None and newest.state in (PENDING, "done") and not is_for_node:
            return {"action": action_json(newest), "is_new": False}
        await _check_worker(session, job, worker_id)
        now = context.clock()
        if newest is not None and is_for_node:
            row = newest
            take_over_drain(session, job, row, asked.actor)
        else:
            row = await add_action(session, job, kind, worker_id, by=asked.actor, now=now)
        message = f"{asked.actor} {_ASKED[kind].format(worker=worker_id)}."
        data = {"worker_id": worker_id, "number": row.number, "by": asked.actor}
        await record_wish(session, job, _EVENTS[kind], message, data, actor=asked.actor, now=now)
        return {"action": action_json(row), "is_new": True}

    reply = await answer_once(context, asked, [reference, worker_id, kind], run)
    return Acted(reply["action"], is_new=reply["is_new"])


async def wait_for_action(context: Context, action: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """The action once it is answered, or as it stands after the wait."""

    async def look() -> dict[str, Any]:
        async with context.database.read() as session:
            row = await session.get(WorkerActionRow, (action["job_id"], action["number"]))
            return action if row is None else action_json(row)

    topics = [job_topic(action["job_id"])]
    return await context.hub.wait_until(topics, look, lambda seen: seen["state"] != PENDING, wait_s)


async def read_stack(context: Context, reference: str, worker_id: str, *, asked: Asked, wait_s: float) -> Stack:
    """Where the threads of a worker's training process are: those told just now, or asked for and waited for.

    Raises:
        ServiceError: not_found (no such job, or no such worker now), job_final, conflict (the job has no workers, or
            they could not be had), precondition_failed.
    """
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        check_edition(job, asked.if_match)
        refuse_final(job, "asked for stacks")
        now, job_id = context.clock(), job.id
        newest = await find_newest(session, job.id, worker_id, "stack")
        if newest is None or not _may_be_shared(newest, now):
            await _check_worker(session, job, worker_id)
            newest = await add_action(session, job, "stack", worker_id, by=asked.actor, now=now)
            job.desired_version += 1
        number = newest.number

    async def look() -> WorkerActionRow | None:
        async with context.database.read() as session:
            return await session.get(WorkerActionRow, (job_id, number))

    def is_over(row: WorkerActionRow | None) -> bool:
        return row is None or row.state != PENDING

    row = await context.hub.wait_until([job_topic(job_id)], look, is_over, wait_s)
    if row is None or row.state == PENDING:
        return Stack("", is_there=False)
    if not row.text:
        # Also a worker that was lost meanwhile: the message says which.
        raise ServiceError(ErrorKind.CONFLICT, f"There are no stacks of {worker_id}: {row.message}.")
    return Stack(f"{row.message}\n\n{row.text}", is_there=True)


def _may_be_shared(stack: WorkerActionRow, now: datetime) -> bool:
    """Whether it answers another question, too: it is young, or its answer is still to be expected."""
    since, most = (stack.asked_at, STACK_OVERDUE) if stack.finished_at is None else (stack.finished_at, STACK_FRESH)
    return abs(now - since) <= most


async def _check_worker(session: AsyncSession, job: Job, worker_id: str) -> None:
    if Status(job.status) not in WITH_CONTROLLER:
        raise ServiceError(ErrorKind.CONFLICT, f"{job.name} is {job.status}: it has no workers now.")
    present = [worker["worker_id"] for worker in await list_workers(session, job) if worker["state"] != "gone"]
    if worker_id not in present:
        others = f"it has {', '.join(present[:20])}" if present else "it has none yet"
        raise ServiceError(ErrorKind.NOT_FOUND, f"{job.name} has no worker {worker_id!r} (any more); {others}.")
