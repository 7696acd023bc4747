"""Shapes of what operators do to workers and nodes, as the OpenAPI document shows them."""

from __future__ import annotations

from pydantic import BaseModel


class WorkerAction(BaseModel):
    """What somebody wanted done to a worker, and what came of it."""

    job_id: str
    number: int
    worker_id: str
    kind: str
    by: str
    state: str
    """pending, done, gone (the worker had ended before), failed, withdrawn."""
    message: str
    asked_at: str
    finished_at: str | None


class NodeJob(BaseModel):
    """A job with workers on a node."""

    job_id: str
    name: str
    workers: int
    cpu: float
    gpu: float
    """What these workers take together."""


class Node(BaseModel):
    """A node of a cluster."""

    node_id: str
    address: str
    hostname: str
    cpu: float
    cpu_used: float
    gpu: float
    gpu_used: float
    memory: float | None
    """Bytes that workers may ask for (`resources_per_worker.memory`); null: its agent did not tell."""
    accelerators: list[str]
    """Types that workers may ask for (`resources_per_worker.accelerator_type`)."""
    state: str
    """ready, cordoned (no new workers), draining (its workers are leaving), drained (none is left)."""
    by: str | None
    """Who wanted that; `ray` where the cluster itself lets the node go."""
    since: str | None
    drain_within_s: float | None
    """Seconds until the cluster takes the node away, where it said so, as last reported."""
    workers_left: int
    """Of all jobs, also those that the caller may not see."""
    jobs: list[NodeJob]


class NodeList(BaseModel):
    """The living nodes of a cluster."""

    items: list[Node]
