"""`rubato submit`: check the spec here, pack and upload the working folder, submit, and tell how to go on."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.cli.entrypoint_check import check_entrypoint
from rubato.cli.options import (
    BatchOption,
    JsonOption,
    MicrobatchesOption,
    RecipeOption,
    SeedOption,
    UrlOption,
    connect,
    parse_assignments,
    settings_of,
)
from rubato.cli.output import note, put, put_json
from rubato.cli.specfile import (
    apply_flags,
    apply_settings,
    find_draft,
    imply_working_dir,
    read_environment_flags,
)
from rubato.errors import PackageError
from rubato.packaging import PackedFolder, pack_folder
from rubato.wire.remarks import remarks_of
from rubato.wire.spec import parse_spec
from rubato.wire.units import format_bytes, plural

if TYPE_CHECKING:
    from rubato.client import Client, Job


def submit(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="job.yaml, job.json, or train.py[:func].")] = None,
    *,
    recipe: RecipeOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers at the start (workers.initial).")] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A value of run.config; repeatable.")] = None,
    batch: BatchOption = None,
    num_microbatches: MicrobatchesOption = None,
    seed: SeedOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="A field of the spec, such as workers.max=8; repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Environment of the training processes; repeatable."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show progress until the job ends. Ctrl-C detaches.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the spec and print it resolved; submit nothing.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Submit a training job.

    Paths in a spec are relative to its file. The working folder is packed (see .rubatoignore) and uploaded once; where
    the entrypoint is a file and there is no `working_dir`, that is the folder of the spec.
    """
    config_given = parse_assignments(config or [], "--config")
    settings_given = settings_of(settings, batch=batch, num_microbatches=num_microbatches, seed=seed)
    env_given = read_environment_flags(env or [], os.environ)
    draft = find_draft(file, recipe)
    data = apply_flags(draft.data, name=name, workers=workers, config=config_given, env=env_given)
    data = apply_settings(data, settings_given)
    parse_spec(data)
    data = imply_working_dir(data, draft.folder)
    if data.get("working_dir") is not None and data.get("entrypoint") is not None:
        remark = check_entrypoint(data["entrypoint"], _packed_folder(data, draft.folder))
        if remark:
            note(remark)
    with connect(url) as client:
        if dry_run:
            if data.get("working_dir") is not None:
                note(f"Would pack {_packed_folder(data, draft.folder)}.")
            checked = client.check({key: value for key, value in data.items() if key != "working_dir"})
            put_json(checked)
            for remark in remarks_of(parse_spec(checked, strict=False)):
                note(remark)
            return
        job = send(client, data, draft.folder)
        announce(job, client.url, as_json=as_json)
        if follow:
            from rubato.cli.follow import follow_to_end

            raise typer.Exit(follow_to_end(client, job))


def send(client: Client, data: dict[str, Any], folder: Path) -> Job:
    """Pack and upload `working_dir` where there is one, then submit with `package` in its place."""
    spec = {key: value for key, value in data.items() if key != "working_dir"}
    if data.get("working_dir") is not None:
        source = _packed_folder(data, folder)
        with tempfile.TemporaryDirectory(prefix="rubato-pack-") as scratch:
            package = pack_folder(source, Path(scratch) / "package.zip")
            is_new = client.upload(package)
            note(_describe(package, source, is_new=is_new))
        spec["package"] = package.sha256
    return client.submit(spec)


def _packed_folder(data: dict[str, Any], folder: Path) -> Path:
    """The working folder.

    Raises:
        PackageError: there is none.
    """
    source = Path(os.path.normpath(folder / data["working_dir"]))
    if not source.is_dir():
        raise PackageError(f"working_dir {source} is no folder; it is relative to the spec file")
    return source


def _describe(package: PackedFolder, source: Path, *, is_new: bool) -> str:
    text = f"Packed {source}: {plural(package.files, 'file')}, {format_bytes(package.packed_bytes)}, "
    text += "uploaded." if is_new else "which the service has already."
    if package.checkpoints:
        text += f" Left out: {plural(package.checkpoints, 'checkpoint')} of earlier runs."
    return text


def announce(job: Job, url: str, *, as_json: bool) -> None:
    """Print the id of a new job, and how to go on with it."""
    if as_json:
        put_json(job.raw)
        return
    put(job.id)
    if sys.stderr.isatty() or not sys.stdout.isatty():
        note(f"Submitted {job.name}: {url}/jobs/{job.id}")
        note(f"  rubato logs {job.name} -f       follow its output")
        other = _other_count(job)
        if other is not None and not job.scaling_restarts:
            note(f"  rubato scale {job.name} {other}       change its workers while it trains")
        note(f"  rubato wait {job.name}          wait for its end")


def _other_count(job: Job) -> int | None:
    """A number of workers that the job may have and was not given; None: there is no other one."""
    allowed = range(job.min_workers, job.max_workers + 1)
    counts = (4, job.max_workers, job.min_workers)
    return next((one for one in counts if one in allowed and one != job.desired_workers), None)
