"""Packages and checkpoints: the bytes."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from api import schemas
from api.auth import Caller, CheckpointId, JobReference, Parts
from api.routes.errors import errors
from api.routes.pages import Cursor, PageLimit
from service import checkpoints, uploads
from service.stored import ObjectFile

router = APIRouter(prefix="/api/v1", tags=["packages and checkpoints"])

BYTES = "application/octet-stream"


class OpenFileResponse(FileResponse):
    """A file that is open already: what lies at its path by now may be another."""

    def __init__(self, file: BinaryIO, filename: str) -> None:
        number = file.fileno()
        super().__init__(f"/dev/fd/{number}", media_type=BYTES, filename=filename, stat_result=os.fstat(number))
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close it whatever comes."""
        with self._file:
            await super().__call__(scope, receive, send)


@router.head("/packages/{sha256}", response_class=Response, responses=errors(404))
async def has_package(sha256: str, context: Parts) -> Response:
    """Whether a package is stored."""
    size = await uploads.size_of(context, sha256)
    return Response(headers={"X-Package-Bytes": str(size)})


@router.put("/packages/{sha256}", status_code=201, responses={200: {}, **errors(413, 503)})
async def put_package(sha256: str, request: Request, response: Response, context: Parts, caller: Caller) -> Any:
    """Store the zip of a working folder under its hash. 200: it was there."""
    is_new, size = await uploads.store(context, sha256, request.stream(), actor=caller.name)
    if not is_new:
        response.status_code = 200
    return {"sha256": sha256, "bytes": size}


@router.get("/jobs/{reference}/checkpoints", response_model=schemas.CheckpointPage, responses=errors(404))
async def list_checkpoints(
    reference: JobReference, context: Parts, cursor: Cursor = None, limit: PageLimit = 200
) -> Any:
    """The job's checkpoints, newest first; the next page begins at `next_cursor`."""
    items, next_cursor = await checkpoints.list_of_job(context, reference, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.get("/checkpoints/{checkpoint_id}", response_model=schemas.Checkpoint, responses=errors(404))
async def get_checkpoint(checkpoint_id: CheckpointId, context: Parts) -> Any:
    """One checkpoint and its files."""
    return await checkpoints.get(context, checkpoint_id)


@router.patch("/checkpoints/{checkpoint_id}", response_model=schemas.Checkpoint, responses=errors(404, 409, 415, 503))
async def update_checkpoint(
    checkpoint_id: CheckpointId, body: schemas.CheckpointRequest, context: Parts, caller: Caller
) -> Any:
    """Pin a checkpoint, or leave it to the job's retention again; the pin is a file beside it on the storage."""
    return await checkpoints.set_pinned(context, checkpoint_id, is_pinned=body.pinned, actor=caller.name)


@router.delete(
    "/checkpoints/{checkpoint_id}", status_code=204, response_class=Response, responses=errors(404, 409, 503)
)
async def delete_checkpoint(checkpoint_id: CheckpointId, context: Parts, caller: Caller) -> Response:
    """Delete a checkpoint and its files; 409 where it is pinned, or where a job that has not ended needs it."""
    await checkpoints.delete(context, checkpoint_id, caller=caller)
    return Response(status_code=204)


@router.get("/checkpoints/{checkpoint_id}/files/{name}", response_class=FileResponse, responses=errors(404, 503))
async def download_file(checkpoint_id: CheckpointId, name: str, context: Parts) -> Response:
    """One file of a checkpoint."""
    found, file_name = await checkpoints.find_file(context, checkpoint_id, name)
    if not isinstance(found, ObjectFile):
        return OpenFileResponse(found, file_name)
    headers = {"Content-Length": str(found.size), "Content-Disposition": f'attachment; filename="{file_name}"'}
    return StreamingResponse(found.chunks(), media_type=BYTES, headers=headers)
