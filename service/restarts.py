"""Jobs that another system trains: a change of their workers is a restart, and their checkpoints are not ours."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from service.errors import ErrorKind, ServiceError
from service.models import Checkpoint, Job, newest_checkpoint


def restarts_to_scale(job: Job) -> bool:
    """Whether another number of workers restarts the job."""
    return bool(job.spec.get("backend", "rubato") == "ray_train")


async def restart_note(session: AsyncSession, job: Job) -> str | None:
    """What a change of the workers costs the job, in a sentence; None: nothing but a pause."""
    if not restarts_to_scale(job):
        return None
    newest = await session.scalar(newest_checkpoint(job.id))
    if newest is None:
        return "That restarts the job from its beginning: it has reported no checkpoint yet."
    return (
        f"That restarts the job from its newest checkpoint (step {newest.step}): steps since then are computed again."
    )


def refuse_foreign(job: Job, checkpoint: Checkpoint, verb: str) -> None:
    """Refuse what only Rubato's own checkpoints allow.

    Raises:
        ServiceError: conflict.
    """
    if restarts_to_scale(job):
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"Checkpoint {checkpoint.checkpoint_id} cannot be {verb}: Ray Train made it, and keeps and deletes its "
            "checkpoints as checkpoint.keep_last or keep_best of the spec says. The event that tells of it names its "
            "folder on the storage.",
        )
