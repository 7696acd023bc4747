"""`rubato init`: a commented train.py and job.yaml to begin with."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files as resources
from pathlib import Path
from typing import Annotated

import typer

from rubato.cli.options import JsonOption
from rubato.cli.output import note, put, put_json
from rubato.errors import UserError
from rubato.home import Home, find_url
from rubato.wire.spec import is_name


class Template(StrEnum):
    """Which program to begin with; each is a file of `rubato.starters`."""

    PLAIN = "plain"
    IMAGES = "images"
    TEXT = "text"
    STREAM = "stream"


CONFIG = {
    Template.PLAIN: "epochs: 5\n  lr: 0.01",
    Template.IMAGES: "epochs: 5\n  lr: 0.003\n  width: 16",
    Template.TEXT: "steps: 200\n  lr: 0.003\n  width: 64\n  blocks: 2",
    Template.STREAM: "steps: 200\n  lr: 0.003",
}
BATCH = {Template.TEXT: 64}
DEFAULT_BATCH = 256

JOB = """\
# yaml-language-server: $schema={url}/api/v1/schemas/job-spec
# A training job: rubato submit job.yaml --follow
name: {name}                    # unique among unfinished jobs
entrypoint: train.py:train      # file, then the function that is called with the run
working_dir: .                  # packed and uploaded; list in .rubatoignore what the training does not need
config:                         # handed to the function as run.config
  {config}
workers:
  initial: 2                    # change it while it trains: rubato scale {name} 4
  min: 1                        # it waits until so many slots are free
  max: 8                        # it never gets more
batch:
  global_size: {batch:<17}# samples in one optimizer step, whatever the worker count
  num_microbatches: auto        # fixed for the job: the pieces of a step that workers share out
seed: 0                         # same seed, same data, same code: same bits
# resources_per_worker: {{cpu: 1, gpu: 0}}
# checkpoint: {{every_steps: 100, keep_last: 3}}
# limits: {{stop_grace: 30s, queue_timeout: 2h}}
# env: {{MY_SETTING: "1"}}
"""

IGNORE = """\
# What `rubato submit` does not upload, one pattern a line, as in a .gitignore.
# Caches, .git, virtual environments and .env are left out anyway.
data/
runs/
*.ckpt
*.pt
"""


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write; made where it does not exist.")] = Path(),
    *,
    template: Annotated[
        Template,
        typer.Option(
            "--template",
            "-t",
            help="plain: the loop; images: classification; text: a transformer; stream: data in shards.",
        ),
    ] = Template.PLAIN,
    name: Annotated[str | None, typer.Option(help="Name of the job. Default: the folder's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented train.py, job.yaml and .rubatoignore. Each template trains within seconds."""
    job_name = name or _name_for(folder.absolute().name)
    if not is_name(job_name):
        raise typer.BadParameter(
            f"{job_name!r} is no name of a job: up to 63 lower-case letters, digits and ._- between them, such as "
            f"{_name_for(job_name)!r}",
            param_hint="--name",
        )
    batch = BATCH.get(template, DEFAULT_BATCH)
    url = find_url(None, Home.from_environment())
    files = {
        "train.py": resources("rubato.starters").joinpath(f"{template}.py").read_text(encoding="utf-8"),
        "job.yaml": JOB.format(url=url, name=job_name, config=CONFIG[template], batch=batch),
        ".rubatoignore": IGNORE,
    }
    present = [file for file in files if (folder / file).exists()]
    if present and not force:
        raise UserError(f"{folder} holds {', '.join(present)} already; choose another folder, or --force to replace")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    if as_json:
        put_json({"folder": str(folder.absolute()), "name": job_name, "template": template, "files": list(files)})
        return
    for file in files:
        put(str(folder / file))
    note("Next: python train.py · rubato run train.py --workers 4 · rubato submit job.yaml --follow")


def _name_for(folder: str) -> str:
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in folder.lower()
    )
    return kept.strip("._-")[:63].strip("._-") or "my-job"
