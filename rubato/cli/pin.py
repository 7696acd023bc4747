"""`rubato pin`: keep a checkpoint whatever the job's retention says."""

from __future__ import annotations

from typing import Annotated

import typer

from rubato.cli.options import JsonOption, UrlOption, connect
from rubato.cli.output import tell
from rubato.errors import CheckpointError, UserError

UndoOption = Annotated[bool, typer.Option("--undo", help="Leave it to the retention again.")]


def pin_by_id(checkpoint_id: str, *, undo: bool, as_json: bool, url: str | None) -> None:
    """Through the service."""
    with connect(url) as client:
        changed = client.pin(checkpoint_id, pinned=not undo)
    tell(changed.raw, f"{checkpoint_id} is {'no longer pinned' if undo else 'pinned'}.", as_json=as_json)


def pin(
    folder: Annotated[
        str, typer.Argument(metavar="ID|FOLDER|URI", help="Of the checkpoint: ckpt_..., or .../JOB/ATTEMPT-STEP.")
    ],
    *,
    undo: UndoOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep a checkpoint: it is never deleted.

    `keep_last` and `keep_best` do not count it.
    By its id through the service, which must reach the storage; by its folder without one.
    """
    if folder.startswith("ckpt_"):
        pin_by_id(folder, undo=undo, as_json=as_json, url=url)
        return
    from rubato.checkpoint import retention
    from rubato.checkpoint.storage import open_folder

    try:
        (retention.unpin if undo else retention.pin)(open_folder(folder))
    except (CheckpointError, OSError) as error:
        raise UserError(f"cannot change {folder}: {error}") from error
    changed = {"folder": folder, "pinned": not undo}
    tell(changed, f"{folder} is {'no longer pinned' if undo else 'pinned'}.", as_json=as_json)
