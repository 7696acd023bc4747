"""`rubato init`: a commented train.py and job.yaml to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rubato.cli.output import note, put
from rubato.errors import UserError

TRAIN = '''\
"""A small training program. Run it as it is (one worker), with local workers, or as a job:

    python train.py --config epochs=3
    rubato run train.py --workers 4
    rubato submit job.yaml --follow

The weights are the same bits in all three, whatever the worker count.
"""

import torch
from torch import nn

import rubato


def make_data(samples: int = 4096) -> torch.utils.data.Dataset:
    """Two interleaved spirals; put your own dataset here. All workers must see the same samples in the same order."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(samples) % 2
    radius = torch.rand(samples, generator=generator)
    angle = radius * 9 + labels * torch.pi
    points = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)
    points += 0.02 * torch.randn(samples, 2, generator=generator)
    return torch.utils.data.TensorDataset(points, labels)


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    config = run.config
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.01))
    run.prepare(model=model, optimizer=optimizer, dataset=make_data())

    for step in run.steps(epochs=config.get("epochs", 20)):  # A worker that joins late starts where the job is.
        for points, labels in step:  # This worker's microbatches, and those of a worker that was lost.
            step.backward(nn.functional.cross_entropy(model(points), labels))
        optimizer.step()  # The gradients are those of the whole batch now, equal on every worker.


if __name__ == "__main__":
    rubato.main(train)
'''

JOB = """\
# A training job: rubato submit job.yaml --follow
name: {name}                    # unique among unfinished jobs
entrypoint: train.py:train      # file, then the function that is called with the run
working_dir: .                  # packed and uploaded; list in .rubatoignore what the training does not need
config:                         # handed to the function as run.config
  epochs: 5
  lr: 0.01
workers:
  initial: 2                    # change it while it trains: rubato scale {name} 4
  min: 1                        # it waits until so many slots are free
  max: 8                        # it never gets more
batch:
  global_size: 256              # samples in one optimizer step, whatever the worker count
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
    name: Annotated[str | None, typer.Option(help="Name of the job. Default: the folder's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented train.py, job.yaml and .rubatoignore to begin with."""
    job_name = name or _name_for(folder.absolute().name)
    files = {"train.py": TRAIN, "job.yaml": JOB.format(name=job_name), ".rubatoignore": IGNORE}
    present = [file for file in files if (folder / file).exists()]
    if present and not force:
        raise UserError(f"{folder} holds {', '.join(present)} already; choose another folder, or --force to replace")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
        put(str(folder / file))
    note("Next: python train.py · rubato run train.py --workers 4 · rubato submit job.yaml --follow")


def _name_for(folder: str) -> str:
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in folder.lower()
    )
    return kept.strip("._-")[:63].strip("._-") or "my-job"
