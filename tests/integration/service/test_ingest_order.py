"""Random traffic: lost replies, doubled and stale batches, take-overs. A small model says what must stand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from rubato.wire.cluster import Report
from tests.simulated_controller import PROCESS, SimulatedController, log_line, metric

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

OPERATIONS = 60


@dataclass
class Model:
    """What the service must have stored."""

    events: list[str] = field(default_factory=list)
    metrics: dict[int, tuple[int, float]] = field(default_factory=dict)
    ingested: list[int] = field(default_factory=list)
    """Steps in order of their newest row."""
    lines: list[str] = field(default_factory=list)

    def take(self, attempt: int, report: Report) -> None:
        self.events += [event.message for event in report.events]
        self.lines += [line.line for line in report.logs]
        for step in sorted({row.step for row in report.metrics}):
            newest = next(row for row in reversed(report.metrics) if row.step == step)
            self.metrics[step] = (attempt, newest.values["loss"])
            self.ingested = [*(other for other in self.ingested if other != step), step]


@pytest.mark.parametrize("seed", range(6))
async def test_random_traffic_leaves_what_the_model_says(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    model = Model()
    current = await bench.start()
    sent: list[Report] = []
    stale: list[tuple[SimulatedController, list[Report]]] = []
    for number in range(OPERATIONS):
        match chance.choice(["new", "new", "new", "again", "stale", "take over", "early"]):
            case "new":
                report = _random_report(chance, current, number)
                # The reply may get lost: then the same batch comes again.
                for _ in range(chance.choice([1, 1, 2, 3])):
                    response = await current.send(report)
                    assert response.status_code == 200, (seed, number, response.text)
                sent.append(report)
                assert current.acquired is not None
                model.take(current.acquired.attempt, report)
            case "again" if sent:
                assert (await current.send(chance.choice(sent))).status_code == 200
            case "stale" if stale:
                controller, reports = chance.choice(stale)
                report = chance.choice([*reports, _random_report(chance, controller, number)])
                response = await controller.send(report)
                assert (response.status_code, response.json()["code"]) == (409, "fenced"), (seed, number)
            case "take over":
                successor = replace(current, process=replace(PROCESS, pid=10_000 + number))
                assert current.acquired is not None
                await successor.acquire(gone=current.acquired.attempt)
                stale.append((current, sent))
                current, sent = successor, []
            case "early":
                report = _random_report(chance, current, number)
                response = await current.send(replace(report, batch=report.batch + chance.randint(1, 5)))
                assert response.status_code == 422, (seed, number)
                current.batch -= 1

    events = (await bench.get("/jobs/digits/events", limit=10_000))["items"]
    assert [item["position"] for item in events] == list(range(1, len(events) + 1)), f"seed {seed}"
    assert [item["message"] for item in events if item["kind"] == "worker.ready"] == model.events, f"seed {seed}"
    rows = (await bench.get("/jobs/digits/metrics", limit=10_000))["items"]
    assert [row["step"] for row in rows] == model.ingested, f"seed {seed}"
    assert {row["step"]: (row["attempt"], row["values"]["loss"]) for row in rows} == model.metrics, f"seed {seed}"
    lines = (await bench.get("/jobs/digits/logs", tail=10_000))["items"]
    assert [item["line"] for item in lines] == model.lines, f"seed {seed}"


def _random_report(chance: random.Random, controller: SimulatedController, number: int) -> Report:
    events = tuple(controller.event("worker.ready", f"{number}.{index}") for index in range(chance.randint(0, 3)))
    metrics = tuple(metric(chance.randint(1, 12), chance.random()) for _ in range(chance.randint(0, 4)))
    logs = tuple(log_line(f"line {number}.{index}") for index in range(chance.randint(0, 3)))
    return controller.next_report(step=chance.randint(0, 12), events=events, metrics=metrics, logs=logs)
