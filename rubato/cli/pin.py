"""`rubato pin`: keep a checkpoint whatever the job's retention says."""

from __future__ import annotations

from typing import Annotated

import typer

from rubato.cli.options import UrlOption, connect
from rubato.cli.output import note
from rubato.errors import CheckpointError, UserError


def pin(
    folder: Annotated[
        str, typer.Argument(metavar="ID|FOLDER|URI", help="Of the checkpoint: ckpt_..., or .../JOB/ATTEMPT-STEP.")
    ],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Leave it to the retention again.")] = False,
    url: UrlOption = None,
) -> None:
    """Keep a checkpoint: `keep_last` and `keep_best` do not count it, and it is never deleted.

    By its id through the service, which must reach the storage; by its folder without one.
    """
    if folder.startswith("ckpt_"):
        with connect(url) as client:
            client.pin(folder, pinned=not undo)
        note(f"{folder} is {'no longer pinned' if undo else 'pinned'}.")
        return
    from rubato.checkpoint import retention
    from rubato.checkpoint.storage import open_folder

    try:
        (retention.unpin if undo else retention.pin)(open_folder(folder))
    except (CheckpointError, OSError) as error:
        raise UserError(f"cannot change {folder}: {error}") from error
    note(f"{folder} is {'no longer pinned' if undo else 'pinned'}.")
