"""The recipes, on samples that rounds divide, by workers on two machines, which are addresses of this one."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from rubato import Run
from rubato.recipes import char_lm as of_characters
from rubato.recipes import image_classifier as of_images

MACHINES = 2
ROUND = 1_024
"""Samples; an epoch has a multiple of them, or its tail would be a round of fewer, which not all have a part in."""


def image_classifier(run: Run) -> None:
    """The recipe `image-classifier`."""
    _train(run, of_images)


def char_lm(run: Run) -> None:
    """The recipe `char-lm`."""
    _train(run, of_characters)


def _train(run: Run, recipe: Any) -> None:
    """Train, and log on how many machines as `machines`."""
    session, prepare = run._session, run.prepare
    number = int(session.control.start.incarnation.partition(".")[2])
    session.host = f"127.0.0.{1 + number % MACHINES}"  # before a group is formed, which names its members' addresses

    def prepare_less(model: Any, optimizer: Any, dataset: Any, **more: Any) -> None:
        prepare(model, optimizer, Subset(dataset, range(len(dataset) // ROUND * ROUND)), **more)

    run.prepare = prepare_less  # type: ignore[method-assign]
    recipe.train(run)
    run.log(machines=len(set(session.comm.hosts)) if session.comm else 1)
