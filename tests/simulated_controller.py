"""A controller and an agent without Ray: they speak the cluster protocol and do what a test tells them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import (
    Acquired,
    AcquireRequest,
    ActionAnswer,
    ControllerSeen,
    Desired,
    EventReport,
    LogLine,
    MetricRow,
    NodeReport,
    Observed,
    Outcome,
    ProcessIdentity,
    Report,
    SyncReply,
    SyncRequest,
    WorkerReport,
)
from rubato.wire.codec import from_json, to_json

PROCESS = ProcessIdentity(node_id="node-1", boot_id="boot-1", pid=4242, start_time=77)
TIME = "2026-01-31T12:00:00.000000Z"
RUNNING = Observed(
    state="running",
    phase="training",
    generation=1,
    workers=1,
    joining=0,
    step=0,
    total_steps=100,
    restarts=0,
    scalings=0,
)


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {token}"}


def metric(step: int, loss: float = 0.5, **values: float) -> MetricRow:
    """The row of one step."""
    return MetricRow(step=step, time=TIME, generation=1, workers=1, values={"loss": loss, **values})


def log_line(text: str, rank: int = 0) -> LogLine:
    """One line of output."""
    return LogLine(worker_id=f"w{rank + 1}", rank=rank, time=TIME, stream="stdout", line=text)


def worker(number: int = 1, node: str = "node-1") -> WorkerReport:
    """One active worker."""
    return WorkerReport(
        worker_id=f"w{number}",
        incarnation=f"{number:08x}",
        rank=number - 1,
        pid=1000 + number,
        supervisor_pid=2000 + number,
        node=node,
        state="active",
    )


def training(count: int) -> dict[str, Any]:
    """What a controller with so many active workers reports."""
    return {"workers": count, "worker_reports": tuple(worker(number + 1) for number in range(count))}


def one_node(cpu: float) -> tuple[NodeReport, ...]:
    """A cluster with so many slots on one node."""
    return (NodeReport(node_id="node-1", address="127.0.0.1", cpu=cpu, hostname="host-1"),)


@dataclass
class SimulatedAgent:
    """Reports nodes, and hears which jobs should have a controller."""

    client: httpx.AsyncClient
    token: str
    cluster_id: str = "default"
    agent_id: str = "agent-1"
    nodes: tuple[NodeReport, ...] = one_node(8)
    version: int = 0

    async def sync(self, *controllers: ControllerSeen, wait: float = 0) -> SyncReply:
        """One sync."""
        request = SyncRequest(
            agent_id=self.agent_id,
            wire_version=WIRE_VERSION,
            nodes=self.nodes,
            controllers=controllers,
            after=self.version,
            wait=wait,
        )
        response = await self.client.post(
            f"/cluster/v1/clusters/{self.cluster_id}/sync",
            json=to_json(request),
            headers=bearer(self.token),
            timeout=30,
        )
        assert response.status_code == 200, response.text
        reply = from_json(SyncReply, response.json())
        self.version = reply.version
        return reply


@dataclass
class SimulatedController:
    """Acquires, reports and polls."""

    client: httpx.AsyncClient
    job_id: str
    ticket: str
    process: ProcessIdentity = PROCESS
    acquired: Acquired | None = None
    batch: int = 0
    seq: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    observed: Observed = RUNNING

    async def try_acquire(self, gone: int = 0) -> httpx.Response:
        """Ask for the next attempt."""
        request = AcquireRequest(job_id=self.job_id, wire_version=WIRE_VERSION, process=self.process, gone=gone)
        return await self.client.post(
            "/cluster/v1/attempts/acquire", json=to_json(request), headers=bearer(self.ticket)
        )

    async def acquire(self, gone: int = 0) -> Acquired:
        """Ask, and expect the grant."""
        response = await self.try_acquire(gone)
        assert response.status_code == 200, response.text
        self.acquired = from_json(Acquired, response.json())
        self.batch, self.seq = 0, itertools.count(1)
        return self.acquired

    def event(self, kind: str, message: str = "it happened", step: int | None = None, **data: Any) -> EventReport:
        """The next event of this attempt."""
        return EventReport(seq=next(self.seq), time=TIME, kind=kind, message=message, step=step, data=data)

    def next_report(
        self,
        *,
        events: tuple[EventReport, ...] = (),
        metrics: tuple[MetricRow, ...] = (),
        logs: tuple[LogLine, ...] = (),
        worker_reports: tuple[WorkerReport, ...] = (),
        answers: tuple[ActionAnswer, ...] = (),
        outcome: Outcome | None = None,
        **observed: Any,
    ) -> Report:
        """The next batch; `observed` changes the controller's view."""
        assert self.acquired is not None, "acquire first"
        self.observed = replace(self.observed, **observed)
        self.batch += 1
        return Report(
            attempt=self.acquired.attempt,
            batch=self.batch,
            wire_version=WIRE_VERSION,
            observed=self.observed,
            workers=worker_reports,
            events=events,
            metrics=metrics,
            logs=logs,
            answers=answers,
            outcome=outcome,
        )

    async def send(self, report: Report) -> httpx.Response:
        """Send a batch, maybe again."""
        assert self.acquired is not None, "acquire first"
        return await self.client.post(
            f"/cluster/v1/jobs/{self.job_id}/report", json=to_json(report), headers=bearer(self.acquired.token)
        )

    async def report(self, **parts: Any) -> None:
        """Send the next batch, and expect its acknowledgement."""
        report = self.next_report(**parts)
        response = await self.send(report)
        assert response.status_code == 200, response.text
        assert response.json()["ack"] == report.batch

    async def try_desired(self, after: int = 0, wait: float = 0) -> httpx.Response:
        """Poll for the wishes."""
        assert self.acquired is not None, "acquire first"
        return await self.client.get(
            f"/cluster/v1/jobs/{self.job_id}/desired",
            params={"after": after, "wait": wait},
            headers=bearer(self.acquired.token),
            timeout=60,
        )

    async def desired(self, after: int = 0, wait: float = 0) -> Desired:
        """Poll, and expect the wishes."""
        response = await self.try_desired(after, wait)
        assert response.status_code == 200, response.text
        return from_json(Desired, response.json())
