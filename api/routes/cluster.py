"""/cluster/v1: what agents and controllers say, and what they hear."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, JSONResponse

from api.auth import Caller, Parts, allow
from api.bodies import read_wire
from api.routes.errors import errors
from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import AcquireRequest, Report, SyncRequest
from rubato.wire.codec import to_json
from service.attempts import acquire, desired, secrets_for_workers
from service.auth import Role
from service.clusters import check_cluster_id, sync
from service.errors import ErrorKind, ServiceError
from service.ingest import ingest
from service.uploads import open_package

router = APIRouter(prefix="/cluster/v1", tags=["clusters"])


@router.post("/clusters/{cluster_id}/sync", responses=errors())
@allow(Role.CLUSTER)
async def sync_cluster(cluster_id: str, request: Request, context: Parts, caller: Caller) -> JSONResponse:
    """The agent's view; answered with the jobs that should have a controller, as soon as the list is new."""
    check_cluster_id(cluster_id)
    view = await read_wire(request, SyncRequest, context.settings.max_body_bytes)
    _check_version(view.wire_version)
    return JSONResponse(to_json(await sync(context, cluster_id, view, caller)))


@router.post("/attempts/acquire", responses=errors(404, 409))
@allow(Role.TICKET)
async def acquire_attempt(request: Request, context: Parts, caller: Caller) -> JSONResponse:
    """The next attempt of a job, once its predecessor cannot act any more; `lease_held` names it otherwise."""
    wish = await read_wire(request, AcquireRequest, context.settings.max_body_bytes)
    _check_version(wish.wire_version)
    return JSONResponse(to_json(await acquire(context, wish, caller)))


@router.post("/jobs/{job_id}/report", responses=errors(404, 409, 413))
@allow(Role.ATTEMPT)
async def report(job_id: str, request: Request, context: Parts, caller: Caller) -> JSONResponse:
    """A batch of facts; stored once, in one transaction with the cursor that acknowledges it."""
    batch = await read_wire(request, Report, context.settings.max_body_bytes)
    _check_version(batch.wire_version)
    return JSONResponse(to_json(await ingest(context, job_id, batch, caller)))


@router.get("/jobs/{job_id}/desired", responses=errors(404, 409))
@allow(Role.ATTEMPT)
async def get_desired(
    job_id: str,
    context: Parts,
    caller: Caller,
    after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
    wait: Annotated[float, Query(ge=0, le=60)] = 0,
) -> JSONResponse:
    """What the user wants now; answered as soon as its version is above `after`, or after `wait` seconds."""
    return JSONResponse(to_json(await desired(context, job_id, caller, after, wait)))


@router.get("/jobs/{job_id}/secrets", responses=errors(404, 409, 503))
@allow(Role.ATTEMPT)
async def get_secrets(job_id: str, context: Parts, caller: Caller) -> JSONResponse:
    """The secrets that the job's spec names, as the attempt was given them; for the environment of its workers."""
    return JSONResponse({"secrets": await secrets_for_workers(context, job_id, caller)})


@router.get("/packages/{sha256}", response_class=FileResponse, responses=errors(404))
@allow(Role.ATTEMPT)
async def get_package(sha256: str, context: Parts, caller: Caller) -> Any:
    """The packed working folder of the attempt's job."""
    path = await open_package(context, sha256, caller)
    return FileResponse(path, media_type="application/zip")


def _check_version(version: int) -> None:
    """This release and the one before are understood."""
    if not WIRE_VERSION - 1 <= version <= WIRE_VERSION:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            f"wire version {version} is not understood here; this service speaks {WIRE_VERSION} and the one before. "
            "Update the older side.",
        )
