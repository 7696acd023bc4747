"""The table and the plot: pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import DOWNTIMES, FIGURES, Figure, Measured, cell, ratio
from benchmarks.peers import PEERS
from benchmarks.plot import Bar, bars_svg

PLOT = Path("images") / "downtime.svg"
"""Beside the document."""
RATIOS = (("steady_2", 2), ("steady_4", 4))


@dataclass(frozen=True)
class Context:
    """What a reader must know to compare."""

    date: str
    machine: str
    versions: str
    rounds: int
    width: int
    batch: int
    device_s: float = 0.0
    """What a sample waits for a device; 0: the cores compute."""


def merge(kept: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Measured], Context]:
    """The rounds of several measurements as those of one, by peer, and the terms they had.

    Raises:  SystemExit: they do not compare.
    """
    contexts = [Context(**one["context"]) for one in kept]
    # A measurement of some peers names the packages of those alone.
    versions = dict.fromkeys(version for one in contexts for version in one.versions.split(", "))
    packages = {version.split(" ")[0] for version in versions}
    if len({(one.width, one.batch, one.device_s) for one in contexts}) > 1 or len(packages) < len(versions):
        sys.exit("these figures do not compare: versions, width, batch or device differ")
    measured: dict[str, Measured] = {}
    for one in kept:
        for name, peer in one["peers"].items():
            whole = measured.setdefault(name, Measured())
            for key, samples in peer["samples"].items():
                whole.samples.setdefault(key, []).extend(samples)
            whole.failures.update(peer["failures"])
    terms = replace(
        contexts[0],
        versions=", ".join(versions),
        date=_span(sorted(one.date for one in contexts)),
        machine=_machines([one.machine for one in contexts]),
        rounds=max(len(samples) for one in measured.values() for samples in one.samples.values()),
    )
    return measured, terms


def _span(ordered: Sequence[str]) -> str:
    """`a to b`, or what is the same in all."""
    return " to ".join(dict.fromkeys([ordered[0], ordered[-1]]))


def _machines(described: Sequence[str]) -> str:
    """Each machine once, with the loads that were found on it."""
    loads: dict[str, list[str]] = {}
    for one in described:
        machine, _, load = one.rpartition(", load ")
        loads.setdefault(machine, []).append(load)
    return "; ".join(f"{machine}, load {_span(sorted(found, key=float))}" for machine, found in loads.items())


def report(measured: Mapping[str, Measured], context: Context, figures: Sequence[str]) -> str:
    """The table by peer, with the terms it was measured on, and why something is missing."""
    rounds = f"{context.rounds} round{'s' if context.rounds != 1 else ''}"
    device = f"; each sample waits {1000 * context.device_s:g} ms for a device" if context.device_s else ""
    lines = [
        f"{context.date}, {context.machine}; {context.versions}. Hidden layers of {context.width}, batch "
        f"{context.batch}{device}; medians and ranges of {rounds}.",
        "",
        row("", [*(PEERS[name].title for name in measured), "target"]),
        row("---", ["---"] * (len(measured) + 1)).replace(" ", ""),
    ]
    for figure in FIGURES:
        if figure.key in figures:
            lines.append(
                row(label(figure), [*(told(figure, name, one) for name, one in measured.items()), figure.target])
            )
    for key, workers in RATIOS:
        if key in figures:
            lines += ratio_rows(measured, key, workers)
    notes = [note for name in measured for note in PEERS[name].notes]
    notes += [
        f"{PEERS[name].title} failed in the run `{run}`: {in_short(cause)}"
        for name, one in measured.items()
        for run, cause in one.failures.items()
    ]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def in_short(cause: str) -> str:
    """The first line of what went wrong, and the last one that names an error."""
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    errors = [line for line in lines[1:] if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return " ... ".join([lines[0], *errors[-1:]])


def row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def label(figure: Figure) -> str:
    return f"{figure.label}, {figure.unit}" if figure.unit in ("s", "ms") else figure.label


def told(figure: Figure, name: str, one: Measured) -> str:
    """A cell: the figure, or why there is none."""
    found = cell(figure, one.samples)
    if found is not None:
        return found
    if figure.run in one.failures or (figure.key == "equal" and "undisturbed" in one.failures):
        return "failed"
    return "-" if figure.run != "story" or not PEERS[name].is_elastic else "never"


def ratio_rows(measured: Mapping[str, Measured], key: str, workers: int) -> list[str]:
    """A steady step against that of DDP, for all; and for Rubato against DDP with as many passes."""
    lines = []
    for base, whose, target in (("ddp", "one pass", ""), ("ddp-passes", "the same passes", "at most 1.05")):
        if base in measured and key in measured[base].samples:
            cells = [
                (ratio(one.samples, measured[base].samples, key) or "-") if base == "ddp" or name == "rubato" else ""
                for name, one in measured.items()
            ]
            lines.append(row(f"of DDP's step with {whose}, {workers} workers", [*cells, target]))
    return lines


def plot(measured: Mapping[str, Measured]) -> str:
    """The downtimes of all peers as an SVG."""
    groups = []
    for figure in FIGURES:
        if figure.key in DOWNTIMES:
            bars = [
                Bar(PEERS[name].title, one.samples.get(figure.key, ()))
                for name, one in measured.items()
                if PEERS[name].is_elastic
            ]
            groups.append((figure.label.removeprefix("downtime, "), bars))
    return bars_svg("Downtime in seconds, by event", groups)
