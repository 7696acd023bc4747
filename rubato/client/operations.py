"""What operators do to single workers and nodes; reached as `Client.operations`."""

from __future__ import annotations

from rubato.client.conversation import Async, Awaiting, Blocking, Call, Sync, call
from rubato.client.models import Row, Rows
from rubato.client.paths import path_of
from rubato.client.transport import Transport

_MARGIN_S = 10.0


class Operations:
    """Drain, kill, look into, cordon. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found` (also a worker that is gone), `conflict`, `job_final`.
    """

    _transport: Transport

    @call
    def drain_worker(self, job: str, worker_id: str, *, wait_s: float = 0.0) -> Call[Row]:
        """Let a worker leave between two steps; another takes its place.

        Args:
            job: id or name.
            worker_id: as `Client.workers` names it: `w1.2`.
            wait_s: seconds to wait for it to be gone, at most 60.

        Returns: the action: `state` is `pending`, `done`, or `gone` where it ended before it could leave; `failed`
            where the backend drains no single workers; `withdrawn` where it need not leave any more.
        """
        return (yield from _act(self._transport, job, worker_id, "drain", wait_s))

    @call
    def kill_worker(self, job: str, worker_id: str, *, wait_s: float = 0.0) -> Call[Row]:
        """End a worker with SIGKILL; the job recovers as from any loss. Arguments and reply as for `drain_worker`."""
        return (yield from _act(self._transport, job, worker_id, "kill", wait_s))

    @call
    def stack(self, job: str, worker_id: str, *, wait_s: float = 30.0) -> Call[str | None]:
        """Where the threads of a worker are now; None: it has not answered within `wait_s` (at most 60)."""
        response = yield from self._transport.send(
            "GET",
            path_of("jobs", job, "workers", worker_id, "stack"),
            params={"wait": wait_s},
            timeout_s=wait_s + _MARGIN_S,
        )
        return response.text if response.status_code == 200 else None

    @call
    def nodes(self, cluster: str = "default") -> Call[Rows]:
        """The nodes of a cluster."""
        found = yield from self._transport.json("GET", path_of("clusters", cluster, "nodes"))
        return list(found["items"])

    @call
    def cordon(self, node_id: str) -> Call[Row]:
        """Give a node no new workers; those that are there stay."""
        return dict((yield from self._transport.json("POST", path_of("nodes", node_id, "cordon"))))

    @call
    def uncordon(self, node_id: str) -> Call[Row]:
        """Let a node have workers again; a drain that is under way ends."""
        return dict((yield from self._transport.json("POST", path_of("nodes", node_id, "uncordon"))))

    @call
    def drain_node(self, node_id: str, *, wait_s: float = 0.0) -> Call[Row]:
        """Cordon a node and let its workers leave, each after its replacement elsewhere, where there is room for one.

        Args:
            node_id: as `nodes` names it.
            wait_s: seconds to wait until no worker is left, at most 60.
        """
        path = path_of("nodes", node_id, "drain")
        params = {"wait": wait_s or None}
        return dict((yield from self._transport.json("POST", path, params=params, timeout_s=wait_s + _MARGIN_S)))


class SyncOperations(Operations, Sync):
    """With calls that block."""

    def __init__(self, transport: Transport, hands: Blocking) -> None:
        self._transport, self._hands = transport, hands


class AsyncOperations(Operations, Async):
    """With calls that are awaited."""

    def __init__(self, transport: Transport, hands: Awaiting) -> None:
        self._transport, self._hands = transport, hands


def _act(transport: Transport, job: str, worker_id: str, verb: str, wait_s: float) -> Call[Row]:
    path = path_of("jobs", job, "workers", worker_id, verb)
    params = {"wait": wait_s or None}
    return dict((yield from transport.create(path, params=params, timeout_s=wait_s + _MARGIN_S)))
