"""What is asked of the service, and what it took."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from benchmarks.load.filling import fill
from benchmarks.load.jobs import cancel, running_jobs, submit
from benchmarks.load.service import Service
from benchmarks.load.streams import watch
from benchmarks.load.timing import percentile, send_at_rate
from rubato.wire.cluster import LogLine, MetricRow
from tests.simulated_controller import SimulatedController, log_line, metric

MB = 10**6
PAST_JOBS = 100_000
PAGE = 50
PAGES_ASKED = 40
LISTS_PER_S = 20.0
SUBMITS_PER_S = 50.0
RUNNING_SQLITE, RUNNING_POSTGRES = 200, 1_000
REPORT_EVERY_S = 5.0
WATCHERS = 500
EVENTS_PER_S = 2.0
REPORTING_JOBS = 50
"""Among whom metrics and log lines are shared out."""
POINTS_PER_S = 10_000
VALUES_A_ROW = 5
CHARTED_POINTS = 1_000_000
ROWS_A_REPORT = 2_000
CHARTS_PER_S = 2.0
LOG_BYTES_PER_S = 5 * MB
LINE_BYTES = 200
STORM_LINES, STORM_LINE_BYTES = 120, 16_000
"""Of a report; a controller sends no larger ones."""
STORM_REQUESTS_PER_S = 20.0
PATIENCE_S = 30.0
_MARK = re.compile(rb"mark-[0-9]+\.")


@dataclass(frozen=True)
class Reading:
    """One figure of one round."""

    name: str
    value: float
    unit: str
    target: float | None
    """It must not be larger; None: it is told for itself."""


@dataclass(frozen=True)
class Pace:
    """How long a scenario sends."""

    seconds: float


Scenario = Callable[[Service, Pace], Coroutine[None, None, list[Reading]]]


async def idle(service: Service, pace: Pace) -> list[Reading]:
    """Nobody asks anything."""
    with _processor(service) as used:
        await asyncio.sleep(pace.seconds)
    memory = service.memory_bytes() / MB
    return [
        Reading("memory of the service", memory, "MB", 150 if service.is_sqlite else None),
        Reading("processor while idle", used(), "% of a core", 2),
    ]


async def listing(service: Service, pace: Pace) -> list[Reading]:
    """Pages all over a long past."""
    async with service.client() as client:
        await _ensure_past(service)
        pages = [{"limit": str(PAGE)}]
        parameters = {"limit": "200"}
        for _ in range(PAGES_ASKED):
            answer = await client.get("/api/v1/jobs", params=parameters)
            parameters["cursor"] = answer.raise_for_status().json()["next_cursor"]
            pages.append(parameters | pages[0])

        async def ask(number: int) -> None:
            answer = await client.get("/api/v1/jobs", params=pages[number % len(pages)])
            assert len(answer.raise_for_status().json()["items"]) == PAGE, answer.text[:200]

        latencies_s = await send_at_rate(LISTS_PER_S, pace.seconds, ask)
    name = f"a page of {PAGE} among {PAST_JOBS:,} jobs, {LISTS_PER_S:.0f} a second"
    return _latencies(name, latencies_s, p50_ms=20, p99_ms=100)


async def submits(service: Service, pace: Pace) -> list[Reading]:
    """Jobs that queue up."""
    async with service.client() as client:
        jobs: list[str] = []

        async def send(_: int) -> None:
            jobs.append(await submit(client))

        latencies_s = await send_at_rate(SUBMITS_PER_S, pace.seconds, send)
        await cancel(client, jobs)
    return _latencies(f"submits, {SUBMITS_PER_S:.0f} a second", latencies_s, p99_ms=200)


async def running(service: Service, pace: Pace) -> list[Reading]:
    """Controllers that each report a step every five seconds, and wait for wishes in between."""
    wanted = RUNNING_SQLITE if service.is_sqlite else RUNNING_POSTGRES
    async with running_jobs(service, wanted) as controllers:
        reporters = _Reporters(controllers, rows=1, lines=())
        with _processor(service) as used:
            latencies_s = await send_at_rate(wanted / REPORT_EVERY_S, max(pace.seconds, REPORT_EVERY_S), reporters.send)
    name = f"reports of {wanted:,} running jobs, each every {REPORT_EVERY_S:.0f} s"
    return [
        *_latencies(name, latencies_s, p99_ms=1000 * REPORT_EVERY_S),
        Reading(f"processor with {wanted:,} running jobs", used(), "% of a core", None),
    ]


async def watchers(service: Service, pace: Pace) -> list[Reading]:
    """Many people look at one job."""
    marks = _Marks()
    async with running_jobs(service, 1) as (controller,), asyncio.TaskGroup() as group:
        path = f"/api/v1/jobs/{controller.job_id}/events"
        readies = [asyncio.Event() for _ in range(WATCHERS)]
        readers = [group.create_task(watch(service, path, marks.heard, ready)) for ready in readies]
        for ready in readies:
            await ready.wait()

        async def tell(number: int) -> None:
            await controller.report(events=(controller.event("worker.ready", marks.new(number, readers=WATCHERS)),))

        await send_at_rate(EVENTS_PER_S, pace.seconds, tell)
        await marks.all_heard()
        for reader in readers:
            reader.cancel()
    return _latencies(f"an event to each of {WATCHERS} watchers", marks.delays_s, p99_ms=500)


async def metrics(service: Service, pace: Pace) -> list[Reading]:
    """Rows of fast jobs."""
    rows = round(POINTS_PER_S / VALUES_A_ROW / REPORTING_JOBS)
    async with running_jobs(service, REPORTING_JOBS) as controllers:
        reporters = _Reporters(controllers, rows=rows, lines=())
        latencies_s = await send_at_rate(REPORTING_JOBS, pace.seconds, reporters.send)
    name = f"reports with {POINTS_PER_S:,} metric points a second"
    return _latencies(name, latencies_s, p99_ms=1000)


async def charts(service: Service, pace: Pace) -> list[Reading]:
    """The whole of a long job."""
    async with service.client() as client:
        path = f"/api/v1/jobs/{await _ensure_charted(service)}/metrics/chart"

        async def ask(_: int) -> None:
            answer = await client.get(path)
            assert answer.raise_for_status().json()["bucket_steps"] > 1, answer.text[:200]

        latencies_s = await send_at_rate(CHARTS_PER_S, pace.seconds, ask)
    return _latencies(f"a chart of {CHARTED_POINTS:,} points, {CHARTS_PER_S:.0f} a second", latencies_s, p99_ms=300)


async def logs(service: Service, pace: Pace) -> list[Reading]:
    """Jobs that print a lot, and a person who follows one of them."""
    lines = LOG_BYTES_PER_S // LINE_BYTES // REPORTING_JOBS
    marks = _Marks()
    async with running_jobs(service, REPORTING_JOBS) as controllers, asyncio.TaskGroup() as group:
        reporters = _Reporters(controllers, rows=0, lines=tuple(log_line("x" * LINE_BYTES) for _ in range(lines)))
        ready = asyncio.Event()
        path = f"/api/v1/jobs/{controllers[0].job_id}/logs?tail=0"
        reader = group.create_task(watch(service, path, marks.heard, ready))
        await ready.wait()

        async def print_some(number: int) -> None:
            is_followed = number % REPORTING_JOBS == 0
            await reporters.send(number, first_line=marks.new(number, readers=1) if is_followed else "")

        latencies_s = await send_at_rate(REPORTING_JOBS, pace.seconds, print_some)
        await marks.all_heard()
        reader.cancel()
    return [
        *_latencies(f"reports with {LOG_BYTES_PER_S // MB} MB of lines a second", latencies_s, p99_ms=1000),
        *_latencies("a line to the one who follows", marks.delays_s, p99_ms=2000),
    ]


async def storm(service: Service, pace: Pace) -> list[Reading]:
    """A job that prints as fast as the service takes it, and what all others wait for meanwhile."""
    lines = tuple(log_line("x" * STORM_LINE_BYTES) for _ in range(STORM_LINES))
    batches, is_over = 0, False
    async with running_jobs(service, 2) as (loud, quiet), service.client() as client, asyncio.TaskGroup() as group:
        reporters = _Reporters([quiet], rows=1, lines=())

        async def print_on() -> None:
            nonlocal batches
            while not is_over:
                await loud.report(logs=lines)
                batches += 1

        async def ask(number: int) -> None:
            if number % 2:
                await reporters.send(number)
            else:
                (await client.get(f"/api/v1/jobs/{quiet.job_id}")).raise_for_status()

        group.create_task(print_on())
        latencies_s = await send_at_rate(STORM_REQUESTS_PER_S, pace.seconds, ask)
        taken = batches * STORM_LINES * STORM_LINE_BYTES / MB / pace.seconds
        is_over = True
    return [
        *_latencies("a request of others while one job prints all it can", latencies_s, p99_ms=250),
        Reading("lines taken of the one that prints", taken, "MB a second", None),
    ]


SCENARIOS: dict[str, Scenario] = {
    "idle": idle,
    "listing": listing,
    "submits": submits,
    "running": running,
    "watchers": watchers,
    "metrics": metrics,
    "charts": charts,
    "logs": logs,
    "storm": storm,
}
"""In the order in which they run, each on a service of its own."""


class _Marks:
    """Words that are sent once and looked for in what readers get; how long each took."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self._sent: dict[bytes, float] = {}
        self._missing = 0
        self._none_missing = asyncio.Event()

    def new(self, number: int, *, readers: int) -> str:
        """A word, sent now, that so many readers will get."""
        mark = f"mark-{number}."
        self._sent[mark.encode()] = time.monotonic()
        self._missing += readers
        self._none_missing.clear()
        return mark

    def heard(self, moment: float, data: bytes) -> None:
        """A reader got this."""
        for mark in _MARK.findall(data):
            self.delays_s.append(moment - self._sent[mark])
            self._missing -= 1
        if not self._missing:
            self._none_missing.set()

    async def all_heard(self) -> None:
        """Until nothing is missing.

        Raises:  TimeoutError: something never came.
        """
        async with asyncio.timeout(PATIENCE_S):
            await self._none_missing.wait()


class _Reporters:
    """Controllers that report in turn; each sends its next report when the one before was acknowledged."""

    def __init__(self, controllers: list[SimulatedController], rows: int, lines: tuple[LogLine, ...]) -> None:
        self._controllers = controllers
        self._turns = [asyncio.Lock() for _ in controllers]
        self._steps = [count(1) for _ in controllers]
        self._rows = rows
        self._lines = lines

    async def send(self, number: int, first_line: str = "") -> None:
        which = number % len(self._controllers)
        async with self._turns[which]:
            rows = tuple(_row(next(self._steps[which])) for _ in range(self._rows))
            lines = (log_line(first_line), *self._lines) if first_line else self._lines
            await self._controllers[which].report(metrics=rows, logs=lines, **({"step": rows[-1].step} if rows else {}))


def _row(step: int) -> MetricRow:
    return metric(step, 1 / step, **{f"value_{number}": step / number for number in range(1, VALUES_A_ROW)})


def _latencies(
    name: str, values_s: list[float], *, p50_ms: float | None = None, p99_ms: float | None = None
) -> list[Reading]:
    return [
        Reading(f"{name}: p50", 1000 * percentile(values_s, 0.5), "ms", p50_ms),
        Reading(f"{name}: p99", 1000 * percentile(values_s, 0.99), "ms", p99_ms),
    ]


@contextmanager
def _processor(service: Service) -> Iterator[Callable[[], float]]:
    """What the service used within, in percent of a core; asked for after it."""
    began, used_s, shares = time.monotonic(), service.cpu_s(), list[float]()
    yield lambda: shares[0]
    shares.append(100 * (service.cpu_s() - used_s) / (time.monotonic() - began))


async def _ensure_charted(service: Service) -> str:
    """A job that has trained for long, once for each database."""
    async with service.client() as client:
        known = await client.get("/api/v1/jobs", params={"label": "charted=yes"})
        for job in known.raise_for_status().json()["items"]:
            return str(job["id"])
        async with running_jobs(service, 1) as (controller,):
            steps = CHARTED_POINTS // VALUES_A_ROW
            for first in range(1, steps, ROWS_A_REPORT):
                rows = tuple(_row(step) for step in range(first, min(first + ROWS_A_REPORT, steps + 1)))
                await controller.report(metrics=rows, step=rows[-1].step)
        # Only once it is whole: who is interrupted begins again.
        path = f"/api/v1/jobs/{controller.job_id}"
        (await client.patch(path, json={"labels": {"charted": "yes"}})).raise_for_status()
    return controller.job_id


async def _ensure_past(service: Service) -> None:
    """Many ended jobs, once for each database."""
    async with service.client() as client:
        known = await client.get("/api/v1/jobs", params={"q": f"past-{PAST_JOBS - 1}"})
        if known.raise_for_status().json()["items"]:
            return
        template = await submit(client)
        await cancel(client, [template])
    await asyncio.to_thread(fill, service, template, PAST_JOBS)
