"""The queue, and why a job waits or has so many workers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from api import schemas
from api.auth import Caller, Parts
from api.routes.errors import errors
from api.routes.pages import Cursor, PageLimit
from service.scheduling import queue

router = APIRouter(prefix="/api/v1", tags=["scheduling"])


@router.get("/queue", response_model=schemas.QueuePage, responses=errors())
async def get_queue(context: Parts, caller: Caller, limit: PageLimit = 50, cursor: Cursor = None) -> Any:
    """The queued jobs in their order, each with what it waits for; and all jobs that hold slots, with how many."""
    return await queue.read_queue(context, caller, cursor=cursor, limit=limit)


@router.get("/jobs/{reference}/explain", response_model=schemas.Explanation, responses=errors(404))
async def explain_job(reference: str, context: Parts, caller: Caller) -> Any:
    """Why a job waits, or why it has so many workers, in the scheduler's words and figures."""
    return await queue.explain(context, reference, caller)
