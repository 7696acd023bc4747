"""`rubato profile`: how long the parts of a step take here. `rubato plan`: what to expect of workers and strategies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.cli.options import JsonOption, RecipeOption, UrlOption, connect, parse_assignments
from rubato.cli.output import note, put, put_json, put_table
from rubato.cli.specfile import read_environment_flags, read_spec
from rubato.errors import SpecError, UserError
from rubato.packaging import hash_file
from rubato.planner.links import MAX_BYTES_PER_S, Link
from rubato.planner.links import MAX_S as MAX_LATENCY_S
from rubato.planner.measured import Passes, link_of, profile_of, sizes_of
from rubato.planner.profile import Profile, program_of
from rubato.wire.codec import from_json, to_json
from rubato.wire.spec import JobSpec, spec_to_json
from rubato.wire.units import format_bytes, format_seconds, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rubato.planner.batches import Batch
    from rubato.planner.choose import Plan
    from rubato.planner.options import Option

SpecFile = Annotated[str | None, typer.Argument(metavar="FILE", help="job.yaml, job.json, or train.py[:func].")]
ConfigOption = Annotated[
    list[str] | None, typer.Option("--config", metavar="K=V", help="A value of run.config; repeatable.")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="A field of the spec; repeatable.")
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", help="Environment of the program; repeatable.")
]


def profile(
    file: SpecFile = None,
    *,
    recipe: RecipeOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the profile is written.")
    ] = Path("profile.json"),
    config: ConfigOption = None,
    settings: SettingsOption = None,
    env: EnvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the parts of a training step here, for `rubato plan`.

    Trains a few steps with passes of three sizes, on one worker, and keeps nothing of it.
    """
    spec, folder = _read(file, recipe, config, settings, env)
    seen = []
    sizes = sizes_of(spec)
    for number, samples in enumerate(sizes, 1):
        note(f"Training a few steps with passes of {samples} samples ({number} of {len(sizes)}) ...")
        seen.append(_measure(spec, folder, samples, with_codecs=number == 1))
    found = replace(profile_of(seen), program=program_of(spec), config=spec.config)
    output.write_text(json.dumps(to_json(found), indent=1))
    if as_json:
        put_json(to_json(found))
        return
    put(
        f"{output}: {found.parameters:,} parameters in {len(seen[0].layers)} layers, "
        f"{format_seconds(found.forward_s(sizes[-1]) + found.backward_s(sizes[-1]))} a pass over {sizes[-1]} samples"
    )
    program = file or f"--recipe {recipe}"
    note(f"`rubato plan {program} --profile {output} --gbit 10` says what to expect of workers and strategies.")


def plan(
    file: SpecFile = None,
    *,
    recipe: RecipeOption = None,
    profile: Annotated[Path, typer.Option("--profile", metavar="FILE", help="What `rubato profile` wrote.")] = Path(
        "profile.json"
    ),
    gbit: Annotated[
        float | None,
        typer.Option(
            "--gbit",
            min=0.000001,
            max=MAX_BYTES_PER_S * 8 / 1e9,
            help="Bandwidth of a worker's network port, in Gbit a second.",
        ),
    ] = None,
    latency_ms: Annotated[
        float,
        typer.Option(
            "--latency-ms",
            min=0.0,
            max=MAX_LATENCY_S * 1e3,
            help="Until a message between two workers begins to arrive.",
        ),
    ] = 0.1,
    links_of: Annotated[
        str | None,
        typer.Option("--links-of", metavar="JOB", help="Instead: a job of the recipe measure-links."),
    ] = None,
    noise_scale: Annotated[
        float | None,
        typer.Option("--noise-scale", metavar="SAMPLES", help="Compare batches, too: what a job like it has charted."),
    ] = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    shows_all: Annotated[
        bool, typer.Option("--all", "-a", help="Show every strategy with every number of workers.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Predict steps by workers and strategy, and say what to use.

    Predictions come from a profile of the program on one worker, and from what you or a job say of the network.
    """
    from rubato.planner.batches import check_noise
    from rubato.planner.choose import plan as make

    if gbit is not None and links_of is not None:
        raise typer.BadParameter("say --gbit or --links-of, not both")
    if gbit is None and links_of is None:
        raise typer.BadParameter("say --gbit, or --links-of a job that has measured the network")
    if noise_scale is not None:
        try:
            check_noise(noise_scale)
        except SpecError as error:
            raise typer.BadParameter(str(error), param_hint="--noise-scale") from None
    spec, folder = _read(file, recipe, config, settings, None)
    known = _read_profile(profile)
    link = _measured(links_of, url) if links_of else Link(latency_ms / 1e3, (gbit or 0.0) * 1e9 / 8)
    answer = make(known, link, spec, noise_scale, _changed(known, spec, folder))
    if as_json:
        put_json(to_json(answer))
        return
    _show(answer, shows_all=shows_all)


def _read(
    file: str | None,
    recipe: str | None,
    config: list[str] | None,
    settings: list[str] | None,
    env: list[str] | None,
) -> tuple[JobSpec, Path]:
    """The spec, and the folder of its program."""
    spec, folder = read_spec(
        file,
        recipe=recipe,
        config=parse_assignments(config or [], "--config"),
        env=read_environment_flags(env or [], os.environ),
        settings=parse_assignments(settings or [], "--set"),
    )
    if spec.backend != "rubato":
        raise UserError("Ray Train decides itself how its workers exchange gradients: there is nothing to plan")
    return spec, folder


def _measured(job: str, url: str | None) -> Link:
    """The links that a job has measured."""
    with connect(url) as client:
        return link_of([point.values for point in client.metrics(job)])


def _measure(spec: JobSpec, folder: Path, samples: int, *, with_codecs: bool) -> Passes:
    from rubato.launch.environment import child_environment

    request = {"spec": spec_to_json(spec), "samples": samples, "with_codecs": with_codecs}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rubato.profiling"],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=child_environment(os.environ, working_dir=folder, job_env=spec.env),
        check=False,
    )
    if done.returncode:
        raise UserError(f"the program failed with passes of {samples} samples; its output is above")
    return from_json(Passes, json.loads(done.stdout))


def _read_profile(path: Path) -> Profile:
    try:
        return from_json(Profile, json.loads(path.read_text()), strict=True)
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}: `rubato profile` measures one") from error
    except (OSError, ValueError, SpecError) as error:
        raise UserError(f"{path} is no profile ({error}); `rubato profile` measures one") from error


def _changed(known: Profile, spec: JobSpec, folder: Path) -> list[str]:
    """Files that are not as they were profiled; of those that lie elsewhere nothing is known."""
    target, _, _ = (spec.entrypoint or "").partition(":")
    folders = [(folder / target).parent, folder] if target.endswith(".py") else [folder]  # as `ProgramCode` looks
    found = []
    for name, digest in known.files.items():
        file = next((path for one in folders if (path := one / name).is_file()), None)
        if file is not None and hash_file(file) != digest:
            found.append(name)
    return found


def _show(answer: Plan, *, shows_all: bool) -> None:
    for sentence in answer.sentences:
        put(sentence)
    put("\nThe fastest of each strategy:")
    _put_options(answer.best, answer.recommended)
    has_more = any(one.workers > 1 for one in answer.options)
    if has_more and not shows_all and all(one.workers == 1 for one in answer.best):
        put("One worker exchanges nothing: --all shows each strategy with more workers.")
    if shows_all:
        put("\nEvery strategy, by workers:")
        _put_options(answer.options, answer.recommended)
    else:
        put(f"\n{answer.recommended.name}, by workers:")
        _put_options(answer.by_workers, answer.recommended)
    if answer.batches:
        put("\nBatches, each with the workers that pay for it:")
        put_table([_batch_row(one, answer.recommended_batch) for one in answer.batches], _OF_BATCHES)
    put("\nNot considered:")
    for reason in dict.fromkeys(one.reason for one in answer.refused):
        put(f"  {', '.join(one.name for one in answer.refused if one.reason == reason)}: {reason}")


_OF_OPTIONS = (
    "strategy", "workers", "step", "compute", "exchange", "codec", "speedup", "sent", "memory", "binds", "",
)  # fmt: skip
_OF_BATCHES = ("batch", "microbatches", "workers", "samples/s", "worth", "progress", "memory", "")
"""What has no name tells which one is recommended."""


def _put_options(options: Sequence[Option], recommended: Option) -> None:
    put_table([_row(option, recommended) for option in options], _OF_OPTIONS)


def _row(option: Option, recommended: Option) -> dict[str, str]:
    return {
        "strategy": option.name,
        "workers": str(option.workers),
        "step": format_seconds(option.step_s),
        "compute": format_seconds(option.compute_s),
        "exchange": format_seconds(option.exposed_s),
        "codec": format_seconds(option.codec_s),
        "speedup": f"{option.speedup:.2f}",
        "sent": format_bytes(option.sent_bytes),
        "memory": _memory(option.memory_bytes),
        "binds": option.binds,
        "": _mark(option, recommended),
    }


def _batch_row(batch: Batch, recommended: Batch | None) -> dict[str, str]:
    return {
        "batch": str(batch.global_size),
        "microbatches": str(batch.num_microbatches),
        "workers": str(batch.workers),
        "samples/s": three_digits(batch.samples_per_s),
        "worth": f"{batch.worth:.2f}",
        "progress": f"{batch.progress:.2f}",
        "memory": _memory(batch.memory_bytes),
        "": _mark(batch, recommended),
    }


def _mark(one: object, recommended: object) -> str:
    return "recommended" if one == recommended else ""


def _memory(size: int) -> str:
    return format_bytes(size) if size else "-"
