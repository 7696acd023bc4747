"""`rubato export`: the model of a checkpoint as a plain safetensors file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rubato.cli.options import UrlOption, connect
from rubato.cli.output import note
from rubato.errors import CheckpointError, UserError
from rubato.home import Home


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB",
            help="Folder or URI of a checkpoint or of a job's checkpoints, run_... of a `rubato run`, or a job.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.safetensors"),
    model: Annotated[str, typer.Option(help="Name of the model, where several were prepared.")] = "",
    step: Annotated[int | None, typer.Option(min=0, help="Of a job: its checkpoint of this step.")] = None,
    url: UrlOption = None,
) -> None:
    """Write the model of a checkpoint as safetensors: parameters and buffers under the names of its state_dict.

    `safetensors.torch.load_file` reads it, and `model.load_state_dict` takes it.
    """
    # Needs torch, which no other command of this kind loads.
    from rubato.checkpoint import export as exporting
    from rubato.checkpoint.storage import open_folder

    where = _storage_of(source)
    try:
        if where is not None:
            if step is not None:
                raise UserError("--step is for jobs; name the checkpoint's folder")
            manifest, size = exporting.export(open_folder(where), out, model)
        else:
            with tempfile.TemporaryDirectory(prefix="rubato-export-") as folder:
                downloaded = _download(source, Path(folder), step, url)
                manifest, size = exporting.export(open_folder(str(downloaded)), out, model)
    except CheckpointError as error:
        raise UserError(f"cannot export {source}: {error}") from error
    note(f"Wrote {out}: step {manifest.step} of {manifest.job}, {size / 1e6:.1f} MB.")


def _storage_of(source: str) -> str | None:
    """Path or URI; None: it is a job of the service."""
    if "://" in source or "/" in source or Path(source).is_dir():
        return source
    if source.startswith("run_"):
        from rubato.launch.local import run_folder

        return str(run_folder(Home.from_environment().path, source) / "checkpoints")
    return None


def _download(job: str, folder: Path, step: int | None, url: str | None) -> Path:
    """A checkpoint of a job, brought here."""
    with connect(url) as client:
        found = client.checkpoints(job)
        if step is not None:
            found = [one for one in found if one.step == step]
        if not found:
            raise UserError(f"{job} has no checkpoint" + (f" of step {step}" if step is not None else " yet"))
        newest = max(found, key=lambda one: (one.attempt, one.step))
        target = folder / newest.checkpoint_id
        target.mkdir()
        for number, file in enumerate(newest.files, start=1):
            note(f"Downloading {file['name']} ({number} of {len(newest.files)}, {int(file['bytes']) / 1e6:.1f} MB) ...")
            client.download(newest.id, str(file["name"]), target)
    return target
