"""`rubato export`: the model of a checkpoint as a plain safetensors file, or a job's metrics for other tools."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.cli.checkpoint_commands import bring
from rubato.cli.local_runs import source_of
from rubato.cli.options import JsonOption, UrlOption, complete_jobs_and_runs, connect, is_local_run
from rubato.cli.output import note, put_json, tell
from rubato.errors import CheckpointError, UserError
from rubato.home import Home
from rubato.wire.units import format_bytes

if TYPE_CHECKING:
    from rubato.checkpoint.manifest import Manifest


def complete_sources(incomplete: str) -> list[str]:
    """Jobs, runs and folders for the shell's completion."""
    parent, slash, begun = incomplete.rpartition("/")
    there = Path(parent + slash)
    names = [one.name for one in there.iterdir() if one.is_dir()] if there.is_dir() else []
    folders = [f"{parent}{slash}{name}/" for name in sorted(names) if name.startswith(begun)]
    return folders if slash else [*complete_jobs_and_runs(incomplete), *folders]


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB",
            help="Folder or URI of a checkpoint or of a job's checkpoints, run_... of a `rubato run`, or a job. A name "
            "without a / is a folder only where that holds checkpoints.",
            autocompletion=complete_sources,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", show_default="JOB-STEP.safetensors", help="The file to write."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    model: Annotated[str, typer.Option(help="Name of the model, where several were prepared.")] = "",
    step: Annotated[int | None, typer.Option(min=0, help="Of a job: its checkpoint of this step.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a job's metrics as event files of TensorBoard instead.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Write a job's metrics to MLflow (http://..., sqlite:///...).")
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT", help="Write a job's metrics to Weights & Biases; WANDB_MODE=offline: a folder."
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Write a checkpoint's model as safetensors, or job metrics.

    The file holds parameters and buffers under the names of the model's state_dict: `safetensors.torch.load_file` reads
    it, and `model.load_state_dict` takes it. With --tensorboard, --mlflow or --wandb it is a job's metrics that are
    written; written again they take the place of what was there.
    """
    if tensorboard is not None or mlflow is not None or wandb is not None:
        told = _export_metrics(source, tensorboard=tensorboard, mlflow=mlflow, wandb=wandb, url=url)
        if as_json:
            put_json(told)
        return
    place = _Place(out, model, force=force)
    manifest, size = _export_model(source, place, model, step, url)
    text = f"Wrote {place.file}: step {manifest.step} of {manifest.job}, {format_bytes(size)}."
    tell({"file": str(place.file), "job": manifest.job, "step": manifest.step, "bytes": size}, text, as_json=as_json)


class _Place:
    """The file to write: the one that was named, or one called by job, step and model."""

    def __init__(self, out: Path | None, model: str, *, force: bool) -> None:
        if out is not None:
            refuse_missing_folder(out)
            refuse_existing(out, force=force)
        self._out, self._model, self._force = out, model, force
        self.file = out or Path()

    def of(self, job: str, step: int) -> Path:
        """The file for a checkpoint.

        Raises:
            UserError: it exists, and is not to be replaced.
        """
        if self._out is None:
            parts = "-".join(filter(None, (job, str(step), self._model)))
            self.file = Path(re.sub(r"[^A-Za-z0-9._-]", "-", parts) + ".safetensors")  # a manifest may say anything
            refuse_existing(self.file, force=self._force)
        return self.file


def refuse_existing(out: Path, *, force: bool) -> None:
    """What a file holds may be another job's model.

    Raises:
        UserError: the file exists, and is not to be replaced.
    """
    if out.exists() and not force:
        raise UserError(f"{out} exists already; name another file with --out, or --force to replace it")


def refuse_missing_folder(out: Path) -> None:
    """Told before anything is read: a folder made for a slip of the pen would not be looked for.

    Raises:
        UserError: the file cannot be there.
    """
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}: make it first (mkdir -p), or name another file with --out")
    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file with --out, such as {out / 'model.safetensors'}")


def _export_metrics(
    job: str, *, tensorboard: Path | None, mlflow: str | None, wandb: str | None, url: str | None
) -> dict[str, Any]:
    from rubato.cli import metric_exports as to

    with source_of(job, url) as client:
        found = client.job(job)
        rows = to.read_rows(client, found)
    told: dict[str, Any] = {"job": found.id, "steps": len(rows)}
    if tensorboard is not None:
        told["tensorboard"] = str(to.to_tensorboard(found, rows, tensorboard))
        note(f"Wrote {len(rows)} steps to {told['tensorboard']}; `tensorboard --logdir {tensorboard}` shows them.")
    if mlflow is not None:
        told["mlflow"] = to.to_mlflow(found, rows, mlflow)
        note(f"Wrote {len(rows)} steps to {mlflow}, run {told['mlflow']}.")
    if wandb is not None:
        told["wandb"] = to.to_wandb(found, rows, wandb)
        note(f"Wrote {len(rows)} steps to {told['wandb']}.")
    return told


def _export_model(source: str, place: _Place, model: str, step: int | None, url: str | None) -> tuple[Manifest, int]:
    """Needs torch, which no other command of this kind loads."""
    from rubato.checkpoint import export as exporting
    from rubato.checkpoint.storage import open_folder

    where = _storage_of(source)
    try:
        if where is not None:
            if step is not None:
                raise UserError("--step is for jobs; name the checkpoint's folder")
            manifest, size = exporting.export(
                open_folder(where),
                lambda found: place.of(found.job, found.step),
                model,
                source if is_local_run(source) else "",
            )
        else:
            with tempfile.TemporaryDirectory(prefix="rubato-export-") as folder:
                downloaded = _download(source, Path(folder), step, place, url)
                manifest, size = exporting.export(open_folder(str(downloaded)), lambda _: place.file, model)
    except CheckpointError as error:
        raise UserError(f"cannot export {source}: {error}") from error
    return manifest, size


def _storage_of(source: str) -> str | None:
    """Path or URI; None: it is a job of the service. A name alone is a folder only where that holds checkpoints:
    `rubato init NAME` makes one that does not.
    """
    if "://" in source or "/" in source:
        return source
    if is_local_run(source):
        from rubato.launch.records import read_record

        return read_record(Home.from_environment().path, source).checkpoints
    if not Path(source).is_dir():
        return None
    if holds_checkpoints(source):
        note(f"{source} is taken as the folder of that name here; a job of that name is exported by its id (job_...).")
        return source
    note(f"{source} is taken as a job: the folder of that name here holds no checkpoint (./{source} would mean it).")
    return None


def holds_checkpoints(path: str) -> bool:
    """Whether a folder of this machine is one of a checkpoint, or of a job's checkpoints."""
    from rubato.checkpoint.manifest import MANIFEST_NAME, checkpoint_folders
    from rubato.checkpoint.storage import open_folder

    folder = open_folder(path)
    return folder.exists(MANIFEST_NAME) or bool(checkpoint_folders(folder))


def _download(job: str, folder: Path, step: int | None, place: _Place, url: str | None) -> Path:
    """A checkpoint of a job, brought here."""
    with connect(url) as client:
        found = client.checkpoints(job)
        if step is not None:
            found = [one for one in found if one.step == step]
        if not found:
            raise UserError(f"{job} has no checkpoint" + (f" of step {step}" if step is not None else " yet"))
        newest = max(found, key=lambda one: (one.attempt, one.step))
        place.of(job, newest.step)
        target = folder / newest.checkpoint_id
        bring(client, newest, target)
    return target
