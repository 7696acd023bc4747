"""`rubato checkpoints`: the checkpoints of the service's jobs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.cli.options import JobArgument, JsonOption, UrlOption, connect
from rubato.cli.output import note, put_json, stdout_console, tell
from rubato.cli.pin import UndoOption, pin_by_id
from rubato.cli.render import checkpoint_table
from rubato.errors import UserError
from rubato.wire.units import format_bytes

if TYPE_CHECKING:
    from rubato.client import Checkpoint, Client

app = typer.Typer(
    name="checkpoints",
    help="List, download, pin and delete checkpoints of jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
CheckpointArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of a checkpoint: ckpt_...")]


@app.command("ls")
def list_checkpoints(job: JobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List a job's checkpoints, newest first."""
    with connect(url) as client:
        found = client.checkpoints(job)
    if as_json:
        put_json([one.raw for one in found])
    elif found:
        stdout_console().print(checkpoint_table(found), soft_wrap=True)
    else:
        note("No checkpoint yet; `rubato checkpoint JOB` asks for one.")


@app.command("download")
def download(
    checkpoint_id: CheckpointArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; made where it is not there.")],
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Bring all files of a checkpoint here; `rubato export FOLDER` makes a model of them."""
    with connect(url) as client:
        found = client.checkpoint_of(checkpoint_id)
        bring(client, found, folder)
    named = str(folder) if len(folder.parts) > 1 else f"./{folder}"  # a name alone may be a job's
    text = f"Wrote {folder}: step {found.step}. `rubato export {shlex.quote(named)}` makes a model of it."
    tell(found.raw, text, as_json=as_json)


def bring(client: Client, checkpoint: Checkpoint, folder: Path) -> None:
    """Bring all files of a checkpoint into a folder, which is made where it is not there.

    Raises:
        UserError: the service knows of none.
    """
    files = checkpoint.files
    if not files:
        raise UserError(
            f"{checkpoint.id} lists no files: Ray Train made it. The event that tells of it names its folder on the "
            "storage"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files, start=1):
        note(f"Downloading {file['name']} ({number} of {len(files)}, {format_bytes(int(file['bytes']))}) ...")
        client.download(checkpoint.id, str(file["name"]), folder, sha256=file.get("sha256") or None)


@app.command("pin")
def pin(
    checkpoint_id: CheckpointArgument, *, undo: UndoOption = False, as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Keep a checkpoint whatever the job's retention says; `rubato pin` does it by folder, without a service."""
    pin_by_id(checkpoint_id, undo=undo, as_json=as_json, url=url)


@app.command("rm")
def remove(checkpoint_id: CheckpointArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Delete a checkpoint and its files; not the newest of a job that has not ended, and none that is pinned."""
    with connect(url) as client:
        client.delete_checkpoint(checkpoint_id)
    tell({"id": checkpoint_id}, f"{checkpoint_id} is deleted.", as_json=as_json)
