"""Single workers of a job: drain, kill, and a look at their stacks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import PlainTextResponse

from api import operations_schemas as schemas
from api.auth import JobReference, Parts, needs
from api.routes.asking import Asker, Wait
from api.routes.errors import errors
from service import workers
from service.access import ProjectRole
from service.context import Context
from service.workers import Acted

router = APIRouter(prefix="/api/v1", tags=["workers"])

WorkerId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="As the list of workers names it.")]
_DONE: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas.WorkerAction, "description": "It was asked for before, or is done."}
}


@router.post(
    "/jobs/{reference}/workers/{worker_id}/drain",
    status_code=202,
    response_model=schemas.WorkerAction,
    responses=_DONE | errors(404, 409, 412),
)
async def drain_worker(
    reference: JobReference, worker_id: WorkerId, response: Response, context: Parts, asked: Asker, wait: Wait = 0
) -> Any:
    """Let a worker leave between two steps; another one takes its place, before it leaves where a slot is free.

    The number of workers that is wanted stays: to have fewer, scale. With `wait` it answers 200 once it is gone.
    """
    acted = await workers.act(context, reference, worker_id, "drain", asked=asked)
    return await _answer(context, response, acted, wait)


@router.post(
    "/jobs/{reference}/workers/{worker_id}/kill",
    status_code=202,
    response_model=schemas.WorkerAction,
    responses=_DONE | errors(404, 409, 412),
)
async def kill_worker(
    reference: JobReference, worker_id: WorkerId, response: Response, context: Parts, asked: Asker, wait: Wait = 0
) -> Any:
    """End a worker's training process with SIGKILL: the job recovers as from any loss, and starts another one."""
    acted = await workers.act(context, reference, worker_id, "kill", asked=asked)
    return await _answer(context, response, acted, wait)


@router.get(
    "/jobs/{reference}/workers/{worker_id}/stack",
    response_class=PlainTextResponse,
    responses={
        202: {"description": "Asked for, not there yet: ask again.", "content": {"text/plain": {}}},
        **errors(404, 409, 412),
    },
)
@needs(ProjectRole.EDITOR)
async def get_stack(
    reference: JobReference, worker_id: WorkerId, context: Parts, asked: Asker, wait: Wait = 10
) -> PlainTextResponse:
    """Where all threads of a worker's training process are now, the main thread first; training goes on.

    One that is younger than five seconds answers the next question, too.
    """
    stack = await workers.read_stack(context, reference, worker_id, asked=asked, wait_s=wait)
    if stack.is_there:
        return PlainTextResponse(stack.text)
    return PlainTextResponse("The worker was asked; ask again.\n", status_code=202, headers={"Retry-After": "1"})


async def _answer(context: Context, response: Response, acted: Acted, wait_s: float) -> dict[str, Any]:
    action = acted.action
    if wait_s:
        action = await workers.wait_for_action(context, action, wait_s)
    if not acted.is_new or action["state"] != "pending":
        response.status_code = 200
    return action
