"""What is measured of a peer, from which run, and how a cell of the table says it: pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.story import KILL, RESIZES, Outcome
from benchmarks.timeline import (
    beyond_former_s,
    downtime_s,
    recovery_s,
    redone_steps,
    requested_s,
    steady_s,
    uncounted,
    warming_ratio,
)

Samples = Mapping[str, Sequence[float]]
"""By figure, one value a round."""


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    key: str
    label: str
    run: str
    """The run it is read from: `two`, `four` or `story`."""
    unit: str
    """`s`, `ms`, `count`, `ratio` or `yes`."""
    target: str = ""
    """What Rubato is to reach, on a machine with a core for each worker."""


FIGURES = (
    Figure("up_1_2", "downtime, 1 -> 2 workers", "story", "s", "< 0.1"),
    Figure("up_2_4", "downtime, 2 -> 4 workers", "story", "s", "< 0.1"),
    Figure("former_1_2", "the same, 1 -> 2, less a step before the request", "story", "s"),
    Figure("former_2_4", "the same, 2 -> 4, less a step before the request", "story", "s"),
    Figure("leave_4_3", "downtime, leave 4 -> 3", "story", "s", "< 0.1"),
    Figure("kill", "downtime, SIGKILL of one of 4", "story", "s", "< 0.4"),
    Figure("redone", "steps computed again after the SIGKILL", "story", "count", "at most 1"),
    Figure("lost", "uses of samples lost", "story", "count", "0"),
    Figure("repeated", "uses of samples repeated", "story", "count", "0"),
    Figure("equal", "final weights equal to the undisturbed run's", "story", "yes", "yes"),
    Figure("request", "request -> all new workers training, 2 -> 4", "story", "s", "< 4"),
    Figure("warming", "step of the others while one warms up (1 -> 2), of a step before", "story", "ratio", "< 1.1"),
    Figure("start", "start -> first step, 2 workers", "two", "s"),
    Figure("steady_2", "steady step, 2 workers", "two", "ms"),
    Figure("steady_4", "steady step, 4 workers", "four", "ms"),
)
DOWNTIMES = ("up_1_2", "up_2_4", "leave_4_3", "kill")


@dataclass
class Measured:
    """All that is known of one peer."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By run, why it failed (the last time)."""

    def add(self, found: Mapping[str, float | None]) -> None:
        """Take in the figures of one run; None: it never came to that."""
        for key, value in found.items():
            if value is not None:
                self.samples.setdefault(key, []).append(value)


def of_fixed(outcome: Outcome, workers: int) -> dict[str, float | None]:
    """The figures of an undisturbed run with 2 or 4 workers."""
    found: dict[str, float | None] = {f"steady_{workers}": steady_s(outcome.rows)}
    if workers == 2:
        found["start"] = outcome.rows[0].time - outcome.started_at
    return found


def of_story(outcome: Outcome, steps: int, batch: int, digest: str | None) -> dict[str, float | None]:
    """The figures of an eventful run.

    Args:    digest: of the undisturbed run; None where there was none.
    """
    rows, kill = outcome.rows, outcome.events[KILL]
    lost, repeated = uncounted(outcome.results[0]["counts"], steps, batch)
    return {
        **{name: downtime_s(rows, outcome.events[name]) for name, _ in RESIZES},
        "former_1_2": beyond_former_s(rows, outcome.events["up_1_2"]),
        "former_2_4": beyond_former_s(rows, outcome.events["up_2_4"]),
        "kill": recovery_s(rows, kill),
        "redone": redone_steps(rows, kill) + outcome.redone,
        "lost": float(lost),
        "repeated": float(repeated),
        "equal": None if digest is None else float(outcome.digest == digest),
        "request": requested_s(rows, outcome.events["up_2_4"]),
        "warming": warming_ratio(rows, outcome.events["up_1_2"]),
    }


def cell(figure: Figure, samples: Samples) -> str | None:
    """Median and range over the rounds, rounded to what one can believe; None where nothing was measured."""
    values = samples.get(figure.key, ())
    if not values:
        return None
    if figure.unit == "yes":
        return "yes" if all(values) else "no"
    say = FORMATS[figure.unit]
    middle, low, high = say(statistics.median(values)), say(min(values)), say(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


FORMATS: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "ms": lambda value: f"{value * 1000:.0f}",
    "count": count,
    "ratio": lambda value: f"{value:.2f}",
}


def ratio(samples: Samples, other: Samples, key: str) -> str | None:
    """The median of the ratios round by round; where one of the two lacks a round, median against median."""
    mine, theirs = samples.get(key, ()), other.get(key, ())
    if not mine or not theirs:
        return None
    if len(mine) == len(theirs):
        return f"{statistics.median(one / base for one, base in zip(mine, theirs, strict=True)):.2f}"
    return f"{statistics.median(mine) / statistics.median(theirs):.2f}"
