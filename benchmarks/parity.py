"""What each strategy learns, beside whole gradients, on the same samples in the same order.

python -m benchmarks.parity [--seeds 5] [--recipes image-classifier,char-lm] [--strategies auto,diloco] [--json FILE]
    [--write]

Each recipe is trained by each strategy with each seed: as many updates of as many samples each, of the same epochs, at
the same learning rate (a constant one, as schedulers step once a round where workers make several updates in it). A
strategy is at parity where the mean of its measure is worse than that of whole gradients by less than MARGIN standard
deviations (pooled over both): declared here, before anything is measured. Of one that is not, the first seeds state
with how many updates of whole gradients its own are at parity, and as many other seeds, of which the statement knows
nothing, are to hold that by the same margin; one that they refute is made anew from all of them, for others to hold.
How fast anything is, is not asked.

The workers are on two machines, which are two addresses of this one, so that what is told between machines is. What is
normalised over a batch is over a worker's own samples: 32 of an update, and where one worker leads those that the
others have. `--json FILE` keeps each value as it is measured, and what it has already is not measured again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import inf, nan, sqrt
from pathlib import Path
from typing import Any

from benchmarks.document import publish
from benchmarks.flags import words
from benchmarks.kept import Kept, add_json_flag
from benchmarks.machine import machine, today, versions
from benchmarks.processes import PROGRAMS, nothing_left_behind
from benchmarks.programs.parity import MACHINES, ROUND
from rubato.launch.environment import child_environment
from rubato.launch.forkserver import ForkServer
from rubato.recipes import char_lm, image_classifier
from rubato.testing import LocalJob

MARGIN = 1.0
ROOM = 0.5
"""Standard deviations by which a strategy is ahead of what is stated of it: other seeds spread, too."""
ATTEMPTS = 3
"""Statements on a strategy, each refuted but the last."""
WORKERS = 4
UPDATES, UPDATE = 256, 128
"""Updates of a run, and samples of one: of all workers together, where they make theirs by themselves, too."""
EVERY = 16
LOOKS = range(EVERY, UPDATES + 1, EVERY)
"""Updates after which it is looked how far whole gradients have come."""
LOCAL_UPDATES = ROUND // UPDATE
"""Updates of a step where there are several in it."""
START: dict[str, Any] = {"start_step": 20}
WHOLE = "auto"
STRATEGIES: dict[str, dict[str, Any]] = {
    WHOLE: {},
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
    "powersgd rank 32": {"compression": {"method": "powersgd", "rank": 32, **START}},
    "topk 50 %": {"compression": {"method": "topk", "density": 0.5, **START}},
    "gtopk 50 %": {"compression": {"method": "gtopk", "density": 0.5, **START}},
    "hierarchical_topk 50 %": {"compression": {"method": "hierarchical_topk", "density": 0.5, **START}},
    "onebit, half whole": {"compression": {"method": "onebit", "start_step": UPDATES // 2}},
}
"""By name, the `aggregation` of a spec."""
SEPARATED = {"method": "layer_separation"}
LOCAL: dict[str, dict[str, Any]] = {
    "local_sgd": {"method": "local_sgd"},
    "diloco": {"method": "diloco"},
    "streaming_diloco of 2": {"method": "streaming_diloco", "fragments": 2, "mix": 0.5},
    "delayed streaming_diloco of 2": {"method": "streaming_diloco", "fragments": 2, "mix": 0.5, "delay": 2},
    "unmixed delayed streaming_diloco of 2": {"method": "streaming_diloco", "fragments": 2, "delay": 2},
    "synchronous with a backup": {"method": "synchronous", "backups": 1},
    "asynchronous": {"method": "asynchronous"},
    "layer_separation": SEPARATED,
    "layer_separation bf16": {**SEPARATED, "cut_format": "bf16"},
    "layer_separation int8": {**SEPARATED, "cut_format": "int8"},
    "layer_separation front bf16": {**SEPARATED, "front_format": "bf16"},
    "local_sgd, twice the rate": {"method": "local_sgd"},
}
"""By name, the `local_updates` of a spec."""
RATES = {"local_sgd, twice the rate": 2.0}
"""By name, the learning rate, in those of whole gradients."""


@dataclass(frozen=True)
class Task:
    """What a recipe is asked for."""

    config: dict[str, Any]
    """With the learning rate constant."""
    measure: str
    """Of its metrics, the last value."""
    is_better_high: bool
    lr: float
    """Of whole gradients, as the recipe has it."""
    cut: str
    """Where its layers are separated."""

    def better_by(self, value: float, other: float) -> float:
        """How much better a value is than another."""
        return value - other if self.is_better_high else other - value

    def worse_by(self, values: Sequence[float], others: Sequence[float]) -> float:
        """How much worse the mean of these is than that of the others, in standard deviations, pooled over both."""
        spread = sqrt((statistics.variance(values) + statistics.variance(others)) / 2)
        difference = self.better_by(statistics.fmean(others), statistics.fmean(values))
        return difference / spread if spread else 0.0

    def stated(self, values: Sequence[float], curve: Mapping[int, Sequence[float]]) -> int:
        """With how many updates of whole gradients a strategy is said to be at parity.

        With all of them, if it is; else with those of the last look up to which it was ahead by ROOM standard
        deviations.  0: it was so at none.

        Args:
            values: of the strategy at its end, by seeds.
            curve:  by updates, ascending, those of whole gradients.
        """
        if self.worse_by(values, curve[UPDATES]) < MARGIN:
            return UPDATES
        ahead = list(takewhile(lambda look: self.worse_by(values, curve[look]) <= -ROOM, curve))
        return ahead[-1] if ahead else 0

    def updates_to(self, value: float, curve: Mapping[int, float]) -> float:
        """After how many updates whole gradients were as good, linear between two looks: from the first look to all.

        Args:    curve: by updates, ascending, how good they were.
        """
        looks = list(curve.items())
        if self.better_by(value, looks[0][1]) <= 0:
            return looks[0][0]
        for (early, before), (late, after) in pairwise(looks):
            if self.better_by(value, after) <= 0:
                return early + (late - early) * self.better_by(value, before) / self.better_by(after, before)
        return looks[-1][0]


TASKS = {
    "image-classifier": Task(
        {"width": 16, "decay": 1.0}, "accuracy", is_better_high=True, lr=image_classifier.Config.lr, cut="8"
    ),
    "char-lm": Task(
        {"layers": 1, "warmup_steps": 1, "epochs": 4, "max_characters": 276_000},
        "val_loss",
        is_better_high=False,
        lr=char_lm.Config.lr,
        cut="blocks",
    ),
}


def spec_of(name: str, task: Task) -> dict[str, Any]:
    """The fields of a spec but the seed; as many updates of as many samples with each strategy."""
    is_local = name in LOCAL
    steps = UPDATES // LOCAL_UPDATES if is_local else UPDATES
    common = {
        "config": {**task.config, "lr": task.lr * RATES.get(name, 1.0), "steps": steps, "evaluate_every": steps},
        "reproducible": False,
        "workers": {"initial": WORKERS, "min": WORKERS, "max": WORKERS},
        "batch": {"global_size": ROUND if is_local else UPDATE, "num_microbatches": WORKERS},
    }
    if not is_local:
        return {**common, "aggregation": STRATEGIES[name]}
    cut = {"cut": task.cut} if LOCAL[name]["method"] == "layer_separation" else {}
    return {**common, "local_updates": {**LOCAL[name], **cut, "sync_every": LOCAL_UPDATES}}


def train(forkserver: ForkServer, recipe: str, name: str, seed: int) -> dict[int, float]:
    """By steps, the measure of one run; of whole gradients on their way, too, of all others at the end."""
    task = TASKS[recipe]
    spec = spec_of(name, task)
    if name == WHOLE:
        spec["config"]["evaluate_every"] = EVERY
    with (
        tempfile.TemporaryDirectory() as home,
        LocalJob(
            Path(home),
            PROGRAMS / "parity.py",
            forkserver=forkserver,
            patience_s=3600.0,
            entrypoint=f"parity.py:{recipe.replace('-', '_')}",
            seed=seed,
            **spec,
        ) as job,
    ):
        job.result()
        rows = job.rows()
    assert rows[-1]["values"]["machines"] == MACHINES, rows[-1]
    return {row["step"]: row["values"][task.measure] for row in rows if task.measure in row["values"]}


class Values:
    """What was measured, by recipe and strategy, in the order of the seeds.

    Args:    file: keeps it; what it has already is taken over.
    Raises:  ValueError: the file is of other runs.
    """

    def __init__(self, file: Path | None) -> None:
        self._kept = Kept[list[float]](file, {"updates": UPDATES, "update": UPDATE, "workers": WORKERS})

    def of(self, recipe: str, name: str) -> list[float]:
        """To look at or to read, not to change."""
        return self._kept.get(recipe, name) or []

    def curve(self, recipe: str) -> dict[int, list[float]]:
        """By updates, ascending, how good whole gradients were: of each seed, in their order."""
        return {look: self.of(f"{recipe}, {WHOLE}", str(look)) for look in LOOKS}

    def add(self, recipe: str, name: str, values: Mapping[int, float]) -> None:
        """Those of the next seed, by steps."""
        self._kept.put(recipe, name, [*self.of(recipe, name), list(values.values())[-1]])
        if name == WHOLE:
            group = f"{recipe}, {WHOLE}"
            for step, value in values.items():
                self._kept.put(group, str(step), [*self.of(group, str(step)), value])

    def missing(self, wanted: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
        """What is still to be measured of so many seeds, by recipe and strategy: recipe, strategy, seed."""
        for recipe, seeds in wanted.items():
            for name, count in seeds.items():
                for seed in range(len(self.of(recipe, name)), count):
                    yield recipe, name, seed


@dataclass(frozen=True)
class Statement:
    """What is said of a strategy, and what became of that."""

    updates: int
    """It is at parity with so many of whole gradients; 0: with none."""
    seeds: int
    """So many first ones state it."""
    worse: float
    """By so many standard deviations, on the seeds behind them; nan: that was not measured yet."""
    is_whole: bool = False
    """At parity with all updates on the first seeds, which is not asked of others: `worse` is of these."""

    @property
    def is_held(self) -> bool:
        """Whether it is true, as far as is known."""
        return self.worse < MARGIN


def statement(recipe: str, values: Values, name: str, seeds: int) -> Statement:
    """The newest one.  Args:    seeds: that state it at first, and that are to hold one."""
    task, found, curve = TASKS[recipe], values.of(recipe, name), values.curve(recipe)
    told = Statement(0, 0, inf)
    while told.seeds < ATTEMPTS * seeds and not told.is_held:
        known = told.seeds + seeds
        updates = task.stated(found[:known], {look: those[:known] for look, those in curve.items()})
        if updates == UPDATES and known == seeds:
            return Statement(updates, known, task.worse_by(found[:known], curve[updates][:known]), is_whole=True)
        if not updates:
            return Statement(0, known, inf)
        others, theirs = (one[known : known + seeds] for one in (found, curve[updates]))
        if min(len(others), len(theirs)) < seeds:
            return Statement(updates, known, nan)
        told = Statement(updates, known, task.worse_by(others, theirs))
    return told


def wanted(recipe: str, values: Values, names: Sequence[str], seeds: int) -> dict[str, int]:
    """By strategy, seeds that its newest statement needs and those to hold it; of whole gradients as many as any."""
    needed = {}
    for name in names:
        told = statement(recipe, values, name, seeds)
        needed[name] = told.seeds + (seeds if told.updates and not told.is_whole else 0)
    return {**needed, WHOLE: max(needed.values())}


def table(recipe: str, values: Values, names: Sequence[str], seeds: int) -> str:
    """By strategy: mean and spread, how far that is behind whole gradients, what is stated of it and whether that held.

    The last two are of other seeds than all the rest where a strategy is not at parity.
    """
    task = TASKS[recipe]
    lines = [
        f"`{recipe}`, {task.measure.replace('_', ' ')} after {UPDATES} updates of {UPDATE} samples:",
        "",
        "| strategy | mean | standard deviation | worse by, standard deviations | as whole gradients after "
        f"| stated parity | worse by on {seeds} other seeds | held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    curve = {look: those[:seeds] for look, those in values.curve(recipe).items()}
    means = {look: statistics.fmean(those) for look, those in curve.items()}
    for name in names:
        found, told = values.of(recipe, name)[:seeds], statement(recipe, values, name, seeds)
        mean = statistics.fmean(found)
        again = f", from {told.seeds} seeds" if told.seeds > seeds else ""
        cells = [
            f"{mean:.4f}",
            f"{statistics.stdev(found):.4f}",
            f"{task.worse_by(found, curve[UPDATES]):+.1f}",
            f"{task.updates_to(mean, means):.0f} updates",
            f"{told.updates} updates{again}",
            *(["", ""] if told.is_whole else [f"{told.worse:+.1f}", "yes" if told.is_held else "no"]),
        ]
        lines.append(" | ".join([f"| {name}", *cells]) + " |")
    return "\n".join(lines)


def measure(forkserver: ForkServer, values: Values, missing: Sequence[tuple[str, str, int]]) -> None:
    """Recipe, strategy and seed one after the other, into the values, with a line for each."""
    began = time.monotonic()
    for number, (recipe, name, seed) in enumerate(missing, 1):
        values.add(recipe, name, train(forkserver, recipe, name, seed))
        left = (time.monotonic() - began) / number * (len(missing) - number)
        run = f"{number} of {len(missing)}, {recipe}, {name}, seed {seed}"
        value = values.of(recipe, name)[-1]
        print(f"{run}: {value:.4f}; about {left / 60:.0f} min left", file=sys.stderr, flush=True)


def several(text: str) -> int:
    """A number of seeds: of one there is no deviation."""
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError(f"{count}: at least 2, or there is no standard deviation to compare with")
    return count


def parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(description="What each strategy learns, beside whole gradients.")
    parser.add_argument("--seeds", type=several, default=5)
    parser.add_argument("--recipes", type=words(list(TASKS)), default=list(TASKS))
    everything = [*STRATEGIES, *LOCAL]
    parser.add_argument("--strategies", type=words(everything), default=everything, help="beside auto")
    add_json_flag(parser)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser


def main() -> None:
    flags = parser().parse_args()
    load = os.getloadavg()[0]
    names = list(dict.fromkeys([WHOLE, *flags.strategies]))
    values = Values(flags.json)
    with nothing_left_behind():
        environment = child_environment(os.environ, working_dir=PROGRAMS)
        with closing(ForkServer(PROGRAMS, environment)) as forkserver:
            needed = {recipe: dict.fromkeys(names, flags.seeds) for recipe in flags.recipes}
            for _ in range(1 + ATTEMPTS):
                measure(forkserver, values, list(values.missing(needed)))
                needed = {recipe: wanted(recipe, values, names, flags.seeds) for recipe in flags.recipes}
    head = f"{today()}, {machine(load)}; {versions(['torch'])}. {WORKERS} workers on {MACHINES} emulated machines"
    parts = [f"{head}, {flags.seeds} seeds, a constant learning rate."]
    parts += [table(recipe, values, names, flags.seeds) for recipe in flags.recipes]
    publish("parity", "\n\n".join(parts), writes=flags.write)


if __name__ == "__main__":
    main()
