"""The communicator seam: the only file that touches semi-private parts of torch.distributed.

One communicator belongs to one generation. It is built once, never repaired, and buried when the generation is over.
Only three collectives are used (all-to-all, all-gather, all-reduce): their `Work` can be polled on gloo, which is what
makes every wait interruptible by a revoke. Point-to-point cannot: its `is_completed` never turns true.

A peer's death does not propagate on gloo: its ring neighbours fail in milliseconds, the others hang. Dropping the
process group *is* the abort, so whoever sees an error drops it at once; so does whoever hears
the controller's revoke.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord

dist: Any = importlib.import_module("torch.distributed")
"""Untyped on purpose: what is used of it here is half private, and its annotations depend on how torch was built."""

FORM_TIMEOUT_S = 30.0
"""For building a group: all members are alive and warm when it is asked for."""
GLOO_THREADS = 4
"""Collectives of a group that can be under way at once."""
BACKSTOP_S = 24 * 3600.0
"""An operation's own timeout, never meant to fire: a revoke ends a wait, and a timed-out gloo pair is useless."""
_POLL_MIN_S, _POLL_MAX_S = 0.00005, 0.0005
"""Polling backs off so that waiting workers leave the cores to those that compute."""


class Pending:
    """A collective under way. Whoever gives it up drops it: it keeps the group, whose end is the abort."""

    def __init__(self, work: Any, is_revoked: Callable[[], bool]) -> None:
        self._work = work
        self._is_revoked = is_revoked

    def wait(self) -> None:
        """Poll until it is over: here, and only here, the engine waits for peers.

        Raises:  GenerationLost: a peer died, or the generation was revoked; what it was to fill is then undefined.
        """
        try:
            pause = _POLL_MIN_S
            while not self._work.is_completed():
                if self._is_revoked():
                    raise GenerationLost("the generation was revoked")
                time.sleep(pause)
                pause = min(pause * 1.5, _POLL_MAX_S)
            self._work.wait()
        except RuntimeError as error:
            raise _lost(error) from None
        finally:
            self._work = None  # a traceback keeps frames alive


class Communicator:
    """The collectives of one generation. Buffers handed to it must not be touched until the call returns.

    All members make the same calls in the same order.
    """

    def __init__(self, group: Any, rank: int, world: int, is_revoked: Callable[[], bool]) -> None:
        self._group = group
        self.rank = rank
        self.world = world
        self._is_revoked = is_revoked

    def start_all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> Pending:
        """As `all_to_all`, without waiting for it."""
        return self._start(lambda: self._group.alltoall_base(out, source, list(out_sizes), list(source_sizes)))

    def all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """Send `source_sizes[r]` elements to each rank r, in order; receive `out_sizes[r]` from each.

        Shapes:  out (sum(out_sizes),), source (sum(source_sizes),), both contiguous.
        Raises:  GenerationLost: a peer died, or the generation was revoked; out is then undefined.
        """
        self.start_all_to_all(out, source, out_sizes, source_sizes).wait()

    def start_all_gather(self, out: torch.Tensor, source: torch.Tensor) -> Pending:
        """As `all_gather`, without waiting for it."""
        return self._start(lambda: self._group._allgather_base(out, source))

    def all_gather(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Gather equal vectors: out[r*n:(r+1)*n] is rank r's source of n elements.

        Raises:  GenerationLost: as above.
        """
        self.start_all_gather(out, source).wait()

    def _start(self, start: Callable[[], Any]) -> Pending:
        if self._group is None or self._is_revoked():
            raise GenerationLost("the generation was revoked")
        try:
            return Pending(start(), self._is_revoked)
        except RuntimeError as error:
            raise _lost(error) from None

    def bury(self) -> None:
        """Drop the group. In a thread of its own: the destructor blocks while a peer is hung rather than dead."""
        group, self._group = self._group, None
        if group is not None:
            grave = [group]
            del group
            threading.Thread(target=grave.clear, name="graveyard", daemon=True).start()


def _lost(error: RuntimeError) -> GenerationLost:
    return GenerationLost(f"a peer was lost: {str(error).splitlines()[0]}")


def open_store(host: str) -> tuple[Any, str]:
    """A store of this process on a free port, for generations that name it; and its address."""
    store = dist.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=FORM_TIMEOUT_S), use_libuv=True
    )
    return store, f"{host}:{store.port}"


def form(
    record: GenerationRecord,
    rank: int,
    *,
    job_id: str,
    host: str,
    device: torch.device,
    is_revoked: Callable[[], bool],
) -> Communicator:
    """Build the group of a generation and prove that it works. Blocks until all members do the same.

    Raises:
        GenerationLost: a member did not come, or the generation was revoked meanwhile.
    """
    address, port = record.store.rsplit(":", 1)
    try:
        client = dist.TCPStore(
            address, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=FORM_TIMEOUT_S)
        )
        store = dist.PrefixStore(f"{job_id}/{record.attempt}/{record.number}", client)
        group = _nccl(store, rank, record.world, device) if device.type == "cuda" else _gloo(store, rank, record, host)
    except (RuntimeError, ValueError) as error:
        raise GenerationLost(f"generation {record.number} could not be formed: {error}") from error
    communicator = Communicator(group, rank, record.world, is_revoked)
    try:
        token = torch.tensor([record.number], dtype=torch.int64, device=device)
        gathered = torch.zeros(record.world, dtype=torch.int64, device=device)
        communicator.all_gather(gathered, token)
    except GenerationLost:
        communicator.bury()
        raise
    return communicator


def _gloo(store: Any, rank: int, record: GenerationRecord, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=FORM_TIMEOUT_S)
    options._threads = GLOO_THREADS
    group = dist.ProcessGroupGloo(store, rank, record.world, options)
    group._set_default_timeout(timedelta(seconds=BACKSTOP_S))
    return group


def _nccl(store: Any, rank: int, world: int, device: torch.device) -> Any:
    """NCCL behind the same seam; abort is a drop, in the graveyard thread, like gloo's."""
    if not dist.is_nccl_available():
        raise ValueError("this build of torch has no NCCL; use device: cpu")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=BACKSTOP_S)
    options.config.blocking = 0
    torch.cuda.set_device(device)
    return dist.ProcessGroupNCCL(store, rank, world, options)
