"""What one item costs the service in processor time: a submit, a metric row, a log line.

python -m benchmarks.load.cost [--databases sqlite,postgres] [--rounds 3]

Requests follow one another, so nothing waits; what is told is user and system time of the service's process divided by
the items, which a busy machine disturbs far less than it does latencies. Least of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine

from benchmarks.load.__main__ import DATABASES, SHOWN, service_on
from benchmarks.load.jobs import cancel, running_jobs, submit
from benchmarks.load.scenarios import LINE_BYTES, VALUES_A_ROW
from benchmarks.load.service import Service
from benchmarks.processes import nothing_left_behind
from tests.simulated_controller import SimulatedController, log_line, metric

SUBMITS = 200
REPORTS = 30
ROWS = 200
LINES = 500

Measure = Callable[[Service], Coroutine[None, None, float]]


async def of_a_submit(service: Service) -> float:
    """Seconds."""
    async with service.client() as client:
        await submit(client)
        began = service.cpu_s()
        jobs = [await submit(client) for _ in range(SUBMITS)]
        used_s = service.cpu_s() - began
        await cancel(client, jobs)
    return used_s / SUBMITS


async def of_a_row(service: Service) -> float:
    """Seconds; one of five values and a loss, two hundred to a report."""

    async def send(controller: SimulatedController, number: int) -> None:
        steps = range(number * ROWS + 1, (number + 1) * ROWS + 1)
        values = [{f"value_{name}": step / name for name in range(1, VALUES_A_ROW)} for step in steps]
        rows = tuple(metric(step, 1 / step, **value) for step, value in zip(steps, values, strict=True))
        await controller.report(metrics=rows, step=steps[-1])

    return await _of_reports(service, send) / ROWS


async def of_a_line(service: Service) -> float:
    """Seconds; five hundred to a report."""
    lines = tuple(log_line("x" * LINE_BYTES) for _ in range(LINES))

    async def send(controller: SimulatedController, number: int) -> None:
        await controller.report(logs=lines)

    return await _of_reports(service, send) / LINES


async def of_a_report(service: Service) -> float:
    """Seconds; with one row, as a job sends that takes a step a second."""

    async def send(controller: SimulatedController, number: int) -> None:
        await controller.report(metrics=(metric(number + 1),), step=number + 1)

    return await _of_reports(service, send)


async def _of_reports(service: Service, send: Callable[[SimulatedController, int], Awaitable[None]]) -> float:
    async with running_jobs(service, 1) as (controller,):
        await send(controller, 0)
        began = service.cpu_s()
        for number in range(1, REPORTS + 1):
            await send(controller, number)
        used_s = service.cpu_s() - began
    return used_s / REPORTS


MEASURES: dict[str, Measure] = {
    "a submit": of_a_submit,
    "a report with one row": of_a_report,
    "a metric row": of_a_row,
    "a log line": of_a_line,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="What one item costs the service in processor time.")
    parser.add_argument("--databases", default=",".join(DATABASES))
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with nothing_left_behind():
        for database in flags.databases.split(","):
            with service_on(database) as service:
                for name, measure in MEASURES.items():
                    found = [asyncio.run(measure(service)) for _ in range(flags.rounds)]
                    print(f"{SHOWN[database]}: {name}: {min(found) * 1e6:,.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
