"""`rubato run`: the same program with local worker processes, without a service."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rubato.cli.entrypoint_check import check_entrypoint
from rubato.cli.local_runs import LocalRuns
from rubato.cli.options import (
    BatchOption,
    JsonOption,
    MicrobatchesOption,
    RecipeOption,
    SeedOption,
    parse_assignments,
    settings_of,
)
from rubato.cli.output import note, put_json
from rubato.cli.specfile import read_environment_flags, read_spec
from rubato.errors import UserError
from rubato.home import Home
from rubato.wire.remarks import remarks_of
from rubato.wire.storage import parse_storage
from rubato.wire.units import plural

MANY_PER_CORE = 4
"""More workers than that are a slip rather than a test of many."""


def run(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE[:FUNC]", help="train.py, train.py:func, or a job.yaml.")
    ] = None,
    *,
    recipe: RecipeOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, help="Worker processes. Default: the spec's, else 1.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A value of run.config; repeatable.")] = None,
    batch: BatchOption = None,
    num_microbatches: MicrobatchesOption = None,
    seed: SeedOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="A field of the spec; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Environment of the training processes; repeatable."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URI", help="Keep checkpoints here (also s3://BUCKET/PREFIX), and go on from the newest one."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train on this machine, without a service.

    It recovers from lost workers, and `rubato scale run_... N` from another terminal changes their number.
    Digest and weights are those of the same job on a cluster. `get`, `events`, `metrics`, `logs`, `wait`, `pause`,
    `cancel` and `checkpoint` take the run's id, too. With --json it prints at its end what `get` says of it.
    """
    from rubato.launch.local import run_local

    config_given = parse_assignments(config or [], "--config")
    env_given = read_environment_flags(env or [], os.environ)
    settings_given = settings_of(settings, batch=batch, num_microbatches=num_microbatches, seed=seed)
    spec, folder = read_spec(
        file, recipe=recipe, workers=workers, config=config_given, env=env_given, settings=settings_given
    )
    if spec.backend != "rubato":
        raise UserError("backend: ray_train needs a Ray cluster: `rubato submit` it instead (`rubato up` starts one)")
    remark = check_entrypoint(spec.entrypoint, folder) if spec.entrypoint is not None else ""
    crowd = describe_crowd(spec.workers.initial, len(os.sched_getaffinity(0)))
    for told in filter(None, (remark, crowd, *remarks_of(spec))):
        note(told)
    home = Home.from_environment()

    def tell_end(run_id: str) -> None:
        put_json(LocalRuns(home).job(run_id).raw)

    code = run_local(
        spec,
        working_dir=folder,
        checkpoint_dir=parse_storage(checkpoint_dir) if checkpoint_dir is not None else None,
        home=home.path,
        tell_end=tell_end if as_json else None,
    )
    raise typer.Exit(code)


def describe_crowd(workers: int, cores: int) -> str:
    """A remark where workers are far more than cores; empty where they are not."""
    if workers <= MANY_PER_CORE * cores:
        return ""
    return (
        f"{workers} workers share {plural(cores, 'core')}: each starts and trains slowly, and takes memory of its own."
    )
