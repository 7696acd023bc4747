"""How long a fault may hold training up at most: loose, so that nothing but a regression breaks it.

Each row of the fault table (docs/faults.md) has its own ceiling, from the worst that was ever measured of it, with
three tests at a time on two cores (`tests/chaos/measured`):

    what training needs by itself   MANY times the worst; LEAST_S where that is less: a busy machine may stand still
    what it waits for by the clock  a deadline, Ray's word: MOST_MORE_S beyond the worst, for a deadline does not grow
    what was never measured         UNMEASURED_S; `make chaos` measures it

Nor may a newcomer hold up those who train while it warms up, whichever the fault is.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

RECORD = os.environ.get("RUBATO_CHAOS_RECORD")
"""A file to which each checked run adds a line; `scripts/fault_table.py` makes docs/faults.md of it. Read at once: a
home that runs takes such variables away."""
MEASURED = Path(__file__).parent / "chaos" / "measured"
MANY = 5.0
LEAST_S = 8.0
MOST_MORE_S = 20.0
UNMEASURED_S = 60.0
WARM_UP_MANY, WARM_UP_MORE_S = 4.0, 0.5
"""While somebody warms up beside it, a step may take so many times as long as before, and so much more: the newcomer
takes its share of cores that are taken already. Where it has cores of its own the promise is 10 %.
"""
FEW = 2
"""Gaps between commits; below that many what is usual is not known."""
LAST = 10
"""Of them, those that say what is usual."""


@dataclass(frozen=True)
class Commit:
    """A step that counts."""

    at: datetime
    generation: int


@dataclass(frozen=True)
class WarmUp:
    """Of a worker, from the start of its process until it stands by."""

    worker_id: str
    begun: datetime
    ended: datetime


def ceiling_s(test: str, fault: str) -> float:
    """For one pause, or for the way back to a checkpoint.

    Args:
        test: the file of the test.
        fault: the row of the table.
    """
    worst = _worst().get((test, fault))
    return UNMEASURED_S if worst is None else max(LEAST_S, min(MANY * worst, worst + MOST_MORE_S))


def check_pauses(test: str, fault: str, seconds: Sequence[float]) -> None:
    """Nothing held training up for much longer than it ever did.

    Args:
        test: the file of the test.
        fault: the row of the table.
        seconds: all that did.
    """
    limit, longest = ceiling_s(test, fault), max(seconds, default=0.0)
    assert longest <= limit, (
        f"{fault} held training up for {longest:.1f} s; far beyond what it ever took: {limit:.1f} s"
    )


def check_warm_ups(commits: Sequence[Commit], warm_ups: Sequence[WarmUp]) -> None:
    """Those who train go on while others warm up, whichever the fault is.

    Looked at is what one generation commits before and meanwhile, and how long it has been at the next step by the end.
    """
    for one in warm_ups:
        before = [commit for commit in commits if commit.at <= one.begun]
        present = [commit.at for commit in commits if before and commit.generation == before[-1].generation]
        trained_on = [at for at in present if at > one.begun]
        usual = [(after - at).total_seconds() for at, after in itertools.pairwise(present) if after <= one.begun][
            -LAST:
        ]
        if len(usual) < FEW or not trained_on:
            continue
        mean, steps = statistics.mean(usual), len([at for at in trained_on if at <= one.ended]) + 1
        took = (min(one.ended, trained_on[-1]) - before[-1].at).total_seconds()
        limit = steps * (WARM_UP_MANY * mean + WARM_UP_MORE_S) + WARM_UP_MORE_S
        assert took <= limit, (
            f"while {one.worker_id} warmed up, {steps} steps took {took:.1f} s, and {mean:.2f} s each before; "
            f"far beyond that is {limit:.1f} s"
        )


def file_of(test: str) -> str:
    """Of a test's id; the soak is none."""
    return test.partition("::")[0].rpartition("/")[2] or "soak.py"


@functools.cache
def _worst() -> Mapping[tuple[str, str], float]:
    """By file and fault; not from the record that is being written."""
    worst: dict[tuple[str, str], float] = {}
    for record in sorted(MEASURED.glob("*.jsonl")):
        if RECORD and record.resolve() == Path(RECORD).resolve():
            continue
        for line in map(json.loads, record.read_text().splitlines()):
            key = file_of(line["test"]), line["fault"]
            noted = [*line["pauses"], *([line["standstill"]] if "standstill" in line else [])]
            worst[key] = max([worst.get(key, 0.0), *noted])
    return worst
