"""What each strategy learns, beside whole gradients, on the same samples in the same order.

python -m benchmarks.parity [--workers 2] [--seeds 5] [--recipes image-classifier,char-lm] [--strategies auto,diloco]
    [--write]

Each recipe is trained by each strategy with each seed, on as many samples. A strategy is at parity where the
mean of its measure is worse than that of whole gradients by less than MARGIN standard deviations (pooled over both):
declared here, before anything is measured. How fast anything is, is not asked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.document import publish
from benchmarks.flags import words
from benchmarks.machine import machine, today, versions
from benchmarks.processes import nothing_left_behind
from rubato.recipes import find_recipe
from rubato.testing import LocalJob
from rubato.wire.local_updates import LocalUpdatesSpec

MARGIN = 1.0
START: dict[str, Any] = {"start_step": 20}
BATCH = 256
LOCAL_BATCH = 1024
"""Samples of a step in which every worker makes LOCAL_UPDATES updates of its own, so of 64 samples with two; as many
and as large ones are made where one worker leads."""
LOCAL_UPDATES = 8
STRATEGIES: dict[str, dict[str, Any]] = {
    "auto": {},
    "fp16": {"compression": {"method": "fp16"}},
    "bf16": {"compression": {"method": "bf16"}},
    "powersgd rank 4": {"compression": {"method": "powersgd", "rank": 4, **START}},
    "topk 5 %": {"compression": {"method": "topk", "density": 0.05, **START}},
    "topk 1 %": {"compression": {"method": "topk", "density": 0.01, **START}},
    "gtopk 5 %": {"compression": {"method": "gtopk", "density": 0.05, **START}},
    "hierarchical_topk 5 %": {"compression": {"method": "hierarchical_topk", "density": 0.05, **START}},
    "threshold 0.001": {"compression": {"method": "threshold", "threshold": 0.001, **START}},
    "onebit": {"compression": {"method": "onebit", **START}},
    "sketch 5 %": {"compression": {"method": "sketch", "density": 0.05, **START}},
    "sketched_sgd 5 %": {"compression": {"method": "sketched_sgd", "density": 0.05, **START}},
}
"""By name, the `aggregation` of a spec."""
SEPARATED = {"method": "layer_separation"}
LOCAL: dict[str, dict[str, Any]] = {
    "local_sgd": {"method": "local_sgd"},
    "diloco": {"method": "diloco"},
    "streaming_diloco of 2": {"method": "streaming_diloco", "fragments": 2, "mix": 0.5},
    "synchronous with a backup": {"method": "synchronous", "backups": 1},
    "asynchronous": {"method": "asynchronous"},
    "layer_separation": SEPARATED,
    "layer_separation bf16": {**SEPARATED, "cut_format": "bf16"},
    "layer_separation int8": {**SEPARATED, "cut_format": "int8"},
}
"""By name, the `local_updates` of a spec."""
MORE = 2
"""So many workers more take part where one leads: of two only one would compute, and nothing would be late."""


@dataclass(frozen=True)
class Task:
    """What a recipe is asked for."""

    config: dict[str, Any]
    measure: str
    """Of its metrics, the last value."""
    is_better_high: bool
    cut: str
    """Where its layers are separated."""


COUNTED = ("steps", "evaluate_every")
"""Of a configuration, what is counted in steps."""
TASKS = {
    "image-classifier": Task({"steps": 400, "evaluate_every": 100}, "accuracy", is_better_high=True, cut="8"),
    "char-lm": Task(
        {"steps": 300, "evaluate_every": 100, "max_characters": 300_000}, "val_loss", is_better_high=False, cut="blocks"
    ),
}


def spec_of(name: str, task: Task, workers: int) -> dict[str, Any]:
    """The fields of a spec in which strategies differ; as many samples with each."""
    if name not in LOCAL:
        return {"aggregation": STRATEGIES[name], "config": task.config, "batch": {"global_size": BATCH}}
    rounds = {key: value * BATCH // LOCAL_BATCH for key, value in task.config.items() if key in COUNTED}
    local = {**LOCAL[name], **({"cut": task.cut} if LOCAL[name]["method"] == "layer_separation" else {})}
    is_led = LocalUpdatesSpec(**local).is_led
    count = workers + MORE if is_led else workers
    return {
        "local_updates": {**local, "sync_every": LOCAL_UPDATES * (workers if is_led else 1)},
        "config": {**task.config, **rounds},
        "batch": {"global_size": LOCAL_BATCH, "num_microbatches": count},
        "workers": {"initial": count, "min": count, "max": count},
    }


def train(recipe: str, name: str, workers: int, seed: int) -> float:
    """The measure at the end of one run."""
    task = TASKS[recipe]
    with (
        tempfile.TemporaryDirectory() as home,
        LocalJob(
            Path(home),
            find_recipe(recipe).path,
            patience_s=3600.0,
            seed=seed,
            reproducible=False,
            **{"workers": {"initial": workers, "min": workers, "max": workers}, **spec_of(name, task, workers)},
        ) as job,
    ):
        job.result()
        told: list[float | None] = [row["values"].get(task.measure) for row in job.rows()]
    return next(value for value in reversed(told) if value is not None)


def table(recipe: str, found: Mapping[str, list[float]]) -> str:
    """By strategy: mean, spread, and how much worse that is than whole gradients."""
    task = TASKS[recipe]
    lines = [
        f"`{recipe}`, {task.measure.replace('_', ' ')} after {task.config['steps']} steps:",
        "",
        "| strategy | mean | standard deviation | worse by, in standard deviations | parity |",
        "|---|---|---|---|---|",
    ]
    whole = found["auto"]
    for name, values in found.items():
        spread = sqrt((statistics.variance(values) + statistics.variance(whole)) / 2)
        difference = statistics.fmean(whole) - statistics.fmean(values)
        worse = (difference if task.is_better_high else -difference) / spread if spread else 0.0
        cells = f"{statistics.fmean(values):.4f} | {statistics.stdev(values):.4f} | {worse:+.1f}"
        lines.append(f"| {name} | {cells} | {'yes' if worse < MARGIN else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each strategy learns, beside whole gradients.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recipes", type=words(list(TASKS)), default=list(TASKS))
    everything = [*STRATEGIES, *LOCAL]
    parser.add_argument("--strategies", type=words(everything), default=everything, help="beside auto")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    parts = [f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.workers} workers, {flags.seeds} seeds."]
    with nothing_left_behind():
        for recipe in flags.recipes:
            found: dict[str, list[float]] = {}
            for name in dict.fromkeys(["auto", *flags.strategies]):
                found[name] = [train(recipe, name, flags.workers, seed) for seed in range(flags.seeds)]
                print(f"{recipe}, {name}: {found[name]}", file=sys.stderr, flush=True)
            parts.append(table(recipe, found))
    publish("parity", "\n\n".join(parts), writes=flags.write)


if __name__ == "__main__":
    main()
