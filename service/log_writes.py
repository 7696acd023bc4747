"""The lines of a report on their way into the log of its job: outside of any transaction, in threads of their own.

A sync takes its time on any disk, and a folder on a network hangs while its server is gone. Nothing else waits
meanwhile: neither a connection nor a row nor the writer's turn is held. For a report with lines:

1. *Hold* the job's log: a lock on a file in its folder, which all replicas share. Who finds it held sends again.
2. *Look* where the log ends, in a short transaction. It asks for the row's lock: a commit whose holder never heard how
   it went is over then, and nobody else moves the end while the log is held.
3. *Append* the lines there, and sync them.
4. *Commit* the new end with all else of the report, if the log still ends where step 2 saw it.
5. *Let go*, whatever came.

So there is no commit without its lines, which are synced before. Lines without a commit, whatever kept it back, are a
tail that no reader looks at and that the next append cuts.

The lock lasts as long as any descriptor of it. An append has its own: when nobody waits for it any more it keeps
others off until the disk lets go of it. One that was stopped on its way, and may have lost its lock on a network file
system meanwhile, writes nothing once it is due.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.cluster import LogLine
from service.clock import to_rfc3339
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.logs import LogPosition, LogStore
from service.models import Job
from service.threads import APPENDS

T = TypeVar("T")

DISK_TIMEOUT_S = 12.0
"""So long a report waits for the disk. Less than a network file system keeps the locks of a client that is silent."""
LET_GO_S = 1.0
"""So long it waits for the end of its lock, once all is stored."""


@dataclass(frozen=True)
class Written:
    """What became of the lines of a report; it counts once `end` is committed."""

    at: LogPosition
    end: LogPosition
    num_dropped: int
    """Lines beyond the quota of the job."""

    @property
    def num_bytes(self) -> int:
        """What was appended."""
        return self.end.offset - (self.at.offset if self.end.segment == self.at.segment else 0)


@asynccontextmanager
async def written(
    context: Context,
    job_id: str,
    attempt: int,
    lines: Sequence[LogLine],
    look: Callable[[AsyncSession], Awaitable[Job | None]],
) -> AsyncIterator[Written | None]:
    """Append lines to a job's log and hold it, for the transaction that commits them.

    Args:
        context: the service's parts.
        job_id: whose log.
        attempt: who says it.
        lines: without any, nothing is held.
        look: the job as it stands; None where the lines are not to be stored.

    Raises:
        ServiceError: not_ready (the disk is slow, or busy with an earlier batch), and whatever `look` raises.
    """
    if not lines:
        yield None
        return
    due = time.monotonic() + DISK_TIMEOUT_S
    async with _held(context.logs, job_id, due) as lock:
        async with context.database.read() as session:
            job = await look(session)
        yield None if job is None else await _append(context, job, attempt, lines, lock, due)


def within_quota(
    lines: Sequence[LogLine], *, num_bytes: int, num_dropped: int, limit: int, told_at: str
) -> Sequence[LogLine]:
    """The lines that a job with so many bytes of log may still store; where its quota ends, one line says so."""
    if num_bytes < limit:
        return lines
    text = f"{beyond(limit_of_logs(limit))}; the job goes on."
    return () if num_dropped else (LogLine("service", None, told_at, "system", text),)


def limit_of_logs(limit: int) -> str:
    """The quota in words."""
    return f"{limit} bytes of log lines"


def beyond(told: str) -> str:
    """That a quota is used up."""
    return f"{told} of this job are stored, which is its quota: further ones are dropped"


async def _append(context: Context, job: Job, attempt: int, lines: Sequence[LogLine], lock: int, due: float) -> Written:
    at = LogPosition(job.log_segment, job.log_offset)
    kept = within_quota(
        lines,
        num_bytes=job.log_bytes,
        num_dropped=job.log_lines_dropped,
        limit=context.settings.max_job_log_bytes,
        told_at=to_rfc3339(context.clock()),
    )
    num_dropped = 0 if kept is lines else len(lines)
    if not kept:
        return Written(at, at, num_dropped)
    append = partial(context.logs.append, job.id, at, attempt, kept, due)
    return Written(at, await _in_time(APPENDS.submit(_holding, os.dup(lock), append), due), num_dropped)


@asynccontextmanager
async def _held(logs: LogStore, job_id: str, due: float) -> AsyncIterator[int]:
    taking = APPENDS.submit(logs.hold, job_id)
    try:
        lock = await _in_time(taking, due)
    except BaseException:
        if not taking.cancel():
            taking.add_done_callback(_let_go_of_late)
        raise
    try:
        yield lock
    finally:
        # In a thread: on a network file system this, too, asks the server.
        await asyncio.wait([asyncio.wrap_future(APPENDS.submit(_close, lock))], timeout=LET_GO_S)


async def _in_time(work: Future[T], due: float) -> T:
    """What the thread returns; it goes on by itself when nobody waits any more."""
    done = asyncio.wrap_future(work)
    done.add_done_callback(_look_at)
    try:
        async with asyncio.timeout(due - time.monotonic()):
            return await asyncio.shield(done)
    except BlockingIOError:
        raise ServiceError(
            ErrorKind.NOT_READY, "The disk of the service's logs is still busy with an earlier batch; send it again."
        ) from None
    except TimeoutError:
        raise ServiceError(
            ErrorKind.NOT_READY, "The disk of the service's logs does not answer; send it again."
        ) from None


def _look_at(done: asyncio.Future[T]) -> None:
    """What goes wrong when nobody waits any more is nobody's business; asyncio would complain that none has looked."""
    if not done.cancelled():
        done.exception()


def _holding(lock: int, append: Callable[[], LogPosition]) -> LogPosition:
    try:
        return append()
    finally:
        _close(lock)


def _let_go_of_late(taking: Future[int]) -> None:
    if taking.exception() is None:
        APPENDS.submit(_close, taking.result())


def _close(lock: int) -> None:
    with suppress(OSError):
        os.close(lock)
