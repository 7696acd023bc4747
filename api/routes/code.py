"""What a job runs, to be read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api import schemas
from api.auth import JobReference, Parts
from api.routes.errors import errors
from service import code

router = APIRouter(prefix="/api/v1", tags=["jobs"])


@router.get("/jobs/{reference}/code", response_model=schemas.Code, responses=errors(404))
async def list_code(reference: JobReference, context: Parts) -> Any:
    """The files of the job's package or recipe, in order of their paths."""
    return await code.list_files(context, reference)


@router.get("/jobs/{reference}/code/text", response_model=schemas.CodeText, responses=errors(404))
async def get_code_text(
    reference: JobReference,
    context: Parts,
    path: Annotated[str, Query(max_length=1_000, description="As the list has it.")],
) -> Any:
    """The text of one of these files, its first 512 KiB."""
    return await code.read_text(context, reference, path)
