"""What operators do to single workers and nodes; reached as `Client.operations`."""

from __future__ import annotations

import uuid
from typing import Any

from rubato.client.paths import path_of
from rubato.client.transport import Transport

_MARGIN_S = 10.0


class Operations:
    """Drain, kill, look into, cordon. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found` (also a worker that is gone), `conflict`, `job_final`.
    """

    def __init__(self, transport: Transport, root: str) -> None:
        self._transport = transport
        self._root = root

    def drain_worker(self, job: str, worker_id: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Let a worker leave between two steps; another takes its place.

        Args:
            job: id or name.
            worker_id: as `Client.workers` names it: `w1.2`.
            wait_s: seconds to wait for it to be gone, at most 60.

        Returns: the action: `state` is `pending`, `done`, or `gone` where it ended before it could leave.
        """
        return self._act(job, worker_id, "drain", wait_s)

    def kill_worker(self, job: str, worker_id: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """End a worker with SIGKILL; the job recovers as from any loss. Arguments and reply as for `drain_worker`."""
        return self._act(job, worker_id, "kill", wait_s)

    def stack(self, job: str, worker_id: str, *, wait_s: float = 30.0) -> str | None:
        """Where the threads of a worker are now; None: it has not answered within `wait_s` (at most 60)."""
        response = self._transport.send(
            "GET",
            self._root + path_of("jobs", job, "workers", worker_id, "stack"),
            params={"wait": wait_s},
            timeout_s=wait_s + _MARGIN_S,
        )
        return response.text if response.status_code == 200 else None

    def nodes(self, cluster: str = "default") -> list[dict[str, Any]]:
        """The nodes of a cluster."""
        return list(self._transport.send_json("GET", self._root + path_of("clusters", cluster, "nodes"))["items"])

    def cordon(self, node_id: str) -> dict[str, Any]:
        """Give a node no new workers; those that are there stay."""
        return dict(self._transport.send_json("POST", self._root + path_of("nodes", node_id, "cordon")))

    def uncordon(self, node_id: str) -> dict[str, Any]:
        """Let a node have workers again; a drain that is under way ends."""
        return dict(self._transport.send_json("POST", self._root + path_of("nodes", node_id, "uncordon")))

    def drain_node(self, node_id: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Cordon a node and let its workers leave, each after its replacement elsewhere, where there is room for one.

        Args:
            node_id: as `nodes` names it.
            wait_s: seconds to wait until no worker is left, at most 60.
        """
        path = self._root + path_of("nodes", node_id, "drain")
        return dict(
            self._transport.send_json("POST", path, params={"wait": wait_s or None}, timeout_s=wait_s + _MARGIN_S)
        )

    def _act(self, job: str, worker_id: str, verb: str, wait_s: float) -> dict[str, Any]:
        return dict(
            self._transport.send_json(
                "POST",
                self._root + path_of("jobs", job, "workers", worker_id, verb),
                params={"wait": wait_s or None},
                headers={"Idempotency-Key": uuid.uuid4().hex},
                timeout_s=wait_s + _MARGIN_S,
            )
        )
