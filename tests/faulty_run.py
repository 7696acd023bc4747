"""Runs of the program that does to itself what a test asks for (`tests/programs/faulty.py`).

Ranks, steps and models are chosen by a seed: `make chaos SEED=2`.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invariants import Undisturbed, check, undisturbed
from local_job import LocalJob

SEED = int(os.environ.get("RUBATO_CHAOS_SEED", "1"))
STEPS = 80
MODELS = ("mlp", "cnn", "transformer", "embedding")
SPEC: dict[str, Any] = {"batch": {"global_size": 64, "num_microbatches": 12}}
HANG_S = 8
"""For a microbatch and a sign of life, where a test waits for it to pass; on a busy machine either takes seconds."""


@functools.cache
def expected(model: str, steps: int = STEPS) -> Undisturbed:
    return undisturbed("faulty", **SPEC, config={"steps": steps, "model": model})


class Chaos:
    """One run of the faulty program, its dice and its faults."""

    def __init__(
        self,
        home: Path,
        row: str,
        *,
        workers: int = 3,
        spares: int = 0,
        steps: int = STEPS,
        models: Sequence[str] = MODELS,
        **spec: Any,
    ) -> None:
        self.row = row
        self.home = home
        self.dice = random.Random(f"{SEED} {row}")
        self.workers = workers
        self.spares = spares
        self.steps = steps
        self.model = self.dice.choice(models)
        self.spec = spec
        self.faults: list[dict[str, Any]] = []

    def fault(self, at: str, do: str, *arguments: Any, who: Any = None, step: int | None = None, **more: Any) -> Path:
        """Add one; its marker."""
        name = f"fault{len(self.faults)}"
        who = [self.dice.randrange(self.workers)] if who is None else who
        step = self.dice.randint(4, 14) if step is None else step
        self.faults.append({"name": name, "at": at, "do": do, "with": arguments, "who": who, "step": step, **more})
        return self.home / name

    def marks(self) -> list[Path]:
        """What the faults leave: one mark each, or one of every rank that it is to hit."""
        return [
            self.home / f"{fault['name']}{suffix}"
            for fault in self.faults
            for suffix in ([f"-{rank}" for rank in fault["who"]] if fault.get("each") else [""])
        ]

    def check_marks(self) -> None:
        """Assert that each fault happened, and to everybody that it was to hit."""
        missing = [mark.name for mark in self.marks() if not mark.exists()]
        assert not missing, f"{missing} of {self.faults} did not happen"

    def start(self) -> LocalJob:
        config = {
            "steps": self.steps,
            "model": self.model,
            "home": str(self.home),
            "faults": self.faults,
            **self.spec.pop("config", {}),
        }
        print(f"seed {SEED}, {self.model}, {self.faults}")
        workers = {"initial": self.workers, "min": 1, "max": 8, "standby": self.spares}
        return LocalJob(self.home, "faulty", **SPEC, **self.spec, config=config, workers=workers)

    def check(self, run: LocalJob, *, lost_touch: int = 0) -> None:
        run.result()
        self.check_marks()
        check(run, expected(self.model, self.steps), fault=self.row, lost_touch=lost_touch)


def causes(run: LocalJob) -> list[str]:
    """Of its generations, without those that only move microbatches."""
    return [event["data"]["cause"] for event in run.formed()]


def arm(marker: Path) -> None:
    marker.with_name(marker.name + ".unarmed").unlink()


def unarmed(marker: Path) -> Path:
    marker.with_name(marker.name + ".unarmed").touch()
    return marker


def marked_pid(run: LocalJob, marker: Path) -> int:
    """Of the process that a fault hit, once it did."""
    run.wait(lambda: marker.exists() and bool(marker.read_text()), f"{marker.name}")
    return int(marker.read_text())
