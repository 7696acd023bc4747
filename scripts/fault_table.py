"""Write the measured half of docs/faults.md from what chaos runs recorded: one row a fault, never by hand.

    make chaos SEED=1; make chaos SEED=2; make fault-table

Each checked run adds a line to the file that RUBATO_CHAOS_RECORD names (tests/invariants.py); pauses are those of the
events `generation.formed`: the gap between the commits around a change of membership, less a median step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
BEGIN = "<!-- measured: written by scripts/fault_table.py -->"
END = "<!-- measured: end -->"


def draw(lines: Sequence[dict[str, Any]], where: str) -> str:
    """The table, in the order in which the faults were first recorded."""
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_fault[line["fault"]].append(line)
    rows = [
        "| fault | runs, all equal to the oracle | pause, median (worst) | microbatches redone, worst | workers lost |",
        "|---|---|---|---|---|",
    ]
    for fault, runs in by_fault.items():
        pauses = [pause for run in runs for pause in run["pauses"]]
        redone = [f"{count} of {run['microbatches']}" for run in runs for count in sorted(run["redone"])[-1:]]
        worst = max(redone, key=lambda text: int(text.split()[0]), default="-")
        lost = [run["lost"] for run in runs]
        losses = f"{min(lost)}" if min(lost) == max(lost) else f"{min(lost)} to {max(lost)}"
        rows.append(f"| {fault} | {len(runs)} | {_spread(pauses)} | {worst} | {losses} |")
    step = statistics.median(line["step_seconds"] for line in lines)
    return "\n".join([f"{len(lines)} runs on {where}; a step took {1000 * step:.0f} ms in the median.", "", *rows])


def _spread(pauses: Sequence[float]) -> str:
    if not pauses:
        return "no pause: the membership did not change"
    return f"{_seconds(statistics.median(pauses))} ({_seconds(max(pauses))})"


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def main() -> None:
    """Replace what is between the marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--where", default=f"{platform.machine()}, {platform.system()}", help="the machine, in words")
    flags = parser.parse_args()
    lines = [json.loads(line) for line in flags.record.read_text().splitlines()]
    before, mark, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{PAGE.name} must contain the lines\n{BEGIN}\n{END}")
    PAGE.write_text(f"{before}{BEGIN}\n{draw(lines, flags.where)}\n{END}{after}")


if __name__ == "__main__":
    main()
