"""Write the measured half of docs/faults.md from what chaos runs recorded: one row a fault, never by hand.

    make chaos SEED=1; make chaos SEED=2; make fault-table

Each checked run adds a line to the record of its seed, the file that RUBATO_CHAOS_RECORD names (tests/invariants.py);
pauses are those of the events `generation.formed`: the gap between the commits around a change of membership, less a
median step. Where the membership need not change (a controller, the service, Ray's head), the longest gap after the
fault was noted too. Of each run the longest of all these counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
BEGIN = "<!-- measured: written by scripts/fault_table.py -->"
END = "<!-- measured: end -->"
CHURNS = ("soak.py", "test_churn.py")


def draw(lines: Sequence[dict[str, Any]], where: str) -> str:
    """The table, by the files of the tests, and in these by the names of the faults."""
    by_fault: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_fault[_file(line["test"]), line["fault"]].append(line)
    rows = [
        "| test | fault | runs | pause, median (worst) | computed again, worst | workers lost |",
        "|---|---|---|---|---|---|",
    ]
    for (file, fault), runs in sorted(by_fault.items(), key=lambda item: item[0]):
        lost = [run["lost"] for run in runs]
        losses = f"{min(lost)}" if min(lost) == max(lost) else f"{min(lost)} to {max(lost)}"
        rows.append(f"| `{file}` | {fault} | {len(runs)} | {_pause(runs)} | {_computed_again(runs)} | {losses} |")
    step = statistics.median(line["step_seconds"] for line in lines)
    summary = f"{len(lines)} runs on {where}; a step took {1000 * step:.0f} ms in the median."
    return "\n".join([summary, *_distribution(lines), "", *rows])


def _distribution(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Of the runs whose membership changes all the time: what a change costs, whichever it is."""
    pauses = sorted(seconds for line in lines if _file(line["test"]) in CHURNS for seconds in line["pauses"])
    if len(pauses) < 10:
        return []
    shares = {"half": 0.5, "nine of ten": 0.9, "99 of a hundred": 0.99}
    told = (f"{name} up to {_seconds(pauses[int(share * (len(pauses) - 1))])}" for name, share in shares.items())
    return [f"Of {len(pauses)} pauses in runs that change without an end: {', '.join(told)}."]


def check_seeds(seeds: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Whether each seed made every fault as often: one that failed half way, or is of older tests, must be run again.

    Args:    seeds: the lines of each, by name.
    Raises:
        SystemExit: one lacks faults, which it names.
    """
    made = {name: Counter((_file(line["test"]), line["fault"]) for line in lines) for name, lines in seeds.items()}
    most: Counter[tuple[str, str]] = Counter()
    for counts in made.values():
        most |= counts
    for name, counts in made.items():
        if missing := [f"{file}: {fault}" for file, fault in sorted(most - counts)]:
            raise SystemExit(f"{name} lacks {len(missing)} faults, run that seed again: {', '.join(missing)}")


def _file(test: str) -> str:
    """Of a test's id; the soak is none."""
    return test.partition("::")[0].rpartition("/")[2] or "soak.py"


def _pause(runs: Sequence[dict[str, Any]]) -> str:
    """The longest of each run."""
    noted = [run["pauses"] + ([run["standstill"]] if "standstill" in run else []) for run in runs]
    longest = [max(seconds) for seconds in noted if seconds]
    return _spread(longest) if longest else "-"


def _computed_again(runs: Sequence[dict[str, Any]]) -> str:
    if steps := [run["steps_again"] for run in runs if "steps_again" in run]:
        return f"{max(steps):.0f} steps"
    redone = [(count, run["microbatches"]) for run in runs for count in run["redone"]]
    return "{} of {}".format(*max(redone)) if redone else "-"


def _spread(values: Sequence[float]) -> str:
    return f"{_seconds(statistics.median(values))} ({_seconds(max(values))})"


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def main() -> None:
    """Replace what is between the marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, nargs="+", help="one file a seed")
    parser.add_argument("--where", default=f"{platform.machine()}, {platform.system()}", help="the machine, in words")
    flags = parser.parse_args()
    if missing := [str(record) for record in flags.record if not record.exists()]:
        parser.error(f"no record at {', '.join(missing)}: run `make chaos SEED=1` first")
    records = {record.name: [json.loads(line) for line in record.read_text().splitlines()] for record in flags.record}
    check_seeds({name: lines for name, lines in records.items() if name.startswith("seed")})
    lines = [line for one in records.values() for line in one]
    before, mark, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{PAGE.name} must contain the lines\n{BEGIN}\n{END}")
    PAGE.write_text(f"{before}{BEGIN}\n{draw(lines, flags.where)}\n{END}{after}")


if __name__ == "__main__":
    main()
