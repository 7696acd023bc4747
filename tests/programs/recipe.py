"""A recipe at a pace: the program is the recipe's own, the brake sits between two of its steps."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pace import brake

import rubato
from rubato.recipes import find_recipe

MAX_WAIT_S = 10.0
"""Well below the deadline after which a silent worker counts as hung."""
BRAKE_S = 60.0
"""Divided by the steps that are left: some three minutes in all, and hardly anything for the first steps."""


class Paced:
    """A `Run` that goes the slower the nearer its end is, while a file exists: a test has as long as it needs."""

    def __init__(self, run: rubato.Run, hold: Path) -> None:
        self._run, self._hold = run, hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def steps(self, **bounds: Any) -> Iterator[Any]:
        for step in self._run.steps(**bounds):
            yield step
            brake(self._hold, min(MAX_WAIT_S, BRAKE_S / (self._run.config["steps"] - step.index)))


def train(run: rubato.Run) -> None:
    recipe = find_recipe(run.config.pop("recipe"))
    hold = Path(run.config.pop("hold"))
    importlib.import_module(recipe.module).train(Paced(run, hold))
