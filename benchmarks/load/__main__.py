"""What the service bears, on SQLite and on PostgreSQL.

python -m benchmarks.load [--databases sqlite,postgres] [--scenarios listing,submits] [--rounds 5] [--seconds 10]

Requests are sent at fixed times whatever became of those before, and latencies count from these times. Service,
database and senders share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.document import publish
from benchmarks.flags import words
from benchmarks.load.scenarios import SCENARIOS, Pace, Reading
from benchmarks.load.service import Service, running_service
from benchmarks.machine import machine, today, versions
from benchmarks.processes import nothing_left_behind
from tests.postgres import new_database, running_postgres

DATABASES = ("sqlite", "postgres")
PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "psycopg")
SHOWN = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
Rounds = dict[str, dict[str, list[Reading]]]
"""Of each figure and database, its readings."""


@contextmanager
def service_on(database: str) -> Iterator[Service]:
    """A fresh service on a fresh database."""
    with tempfile.TemporaryDirectory(prefix="rb-load-") as folder:
        if database == "sqlite":
            with running_service(Path(folder)) as service:
                yield service
        else:
            with running_postgres() as server, running_service(Path(folder), new_database(server)) as service:
                yield service


def measure(databases: list[str], scenarios: list[str], rounds: int, pace: Pace) -> tuple[Rounds, list[str]]:
    """All readings, by figure and database; and which scenarios ended with an error, with its reason."""
    found: Rounds = {}
    failed = []
    for database in databases:
        for name in scenarios:
            # A service of its own for each: what one scenario leaves is no burden to the next.
            with service_on(database) as service:
                try:
                    for number in range(rounds):
                        print(f"{SHOWN[database]}, {name}, round {number + 1} ...", file=sys.stderr, flush=True)
                        for reading in asyncio.run(SCENARIOS[name](service, pace)):
                            found.setdefault(reading.name, {}).setdefault(database, []).append(reading)
                except Exception as error:
                    failed.append(f"{SHOWN[database]}, {name}, failed: {first_cause(error)}")
                    print(failed[-1], file=sys.stderr, flush=True)
    return found, failed


def first_cause(error: BaseException) -> str:
    """In a line: of a group, of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else 'no message'}"


def table(found: Rounds, databases: list[str]) -> str:
    """A row a figure: median and range of each database, and whether the target was reached."""
    lines = [
        f"| figure | target | {' | '.join(SHOWN[name] for name in databases)} |",
        f"|---|---|{'---|' * len(databases)}",
    ]
    for figure, by_database in found.items():
        cells = [_cell(by_database.get(name, [])) for name in databases]
        first = next(iter(by_database.values()))[0]
        target = "" if first.target is None else f"at most {_number(first.target)} {first.unit}"
        lines.append(f"| {figure} | {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(readings: list[Reading]) -> str:
    if not readings:
        return ""
    values = [reading.value for reading in readings]
    middle = statistics.median(values)
    missed = "**missed:** " if readings[0].target is not None and middle > readings[0].target else ""
    return f"{missed}{_number(middle)} {readings[0].unit} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(description="What the service bears, on SQLite and on PostgreSQL.")
    parser.add_argument("--databases", type=words(DATABASES), default=list(DATABASES))
    parser.add_argument("--scenarios", type=words(list(SCENARIOS)), default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load in each round")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    with nothing_left_behind():
        found, failed = measure(flags.databases, flags.scenarios, flags.rounds, Pace(flags.seconds))
    text = (
        f"{today()}, {machine(load)}; {versions(PACKAGES)}. Medians and ranges of {flags.rounds} rounds of "
        f"{flags.seconds:.0f} s; service, database and senders share the cores.\n\n"
        f"{table(found, flags.databases)}" + "".join(f"\n\n{line}" for line in failed)
    )
    publish("load", text, writes=flags.write)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
