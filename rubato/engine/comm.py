"""The communicator seam: the only file that touches semi-private parts of torch.distributed.

One communicator belongs to one generation. It is built once, never repaired, and buried when the generation is over.
Two collectives are used (all-to-all, all-gather): their `Work` can be polled on gloo, which is what makes every wait
interruptible by a revoke. Point-to-point cannot, its `is_completed` never turns true: there a thread waits.

gloo sends when the receiver has said that it is ready, and that is said on the connection on which it sends itself. In
an all-to-all it is said behind one's own message to the same peer, so that two large messages between two workers pass
one after the other; point to point it can be said before. What strategies exchange goes that way.

A peer's death does not propagate on gloo: its ring neighbours fail in milliseconds, the others hang. Dropping the
process group *is* the abort, so whoever sees an error drops it at once; so does whoever hears the controller's revoke.

Tensors in the memory of the CPU travel over gloo. Those of a GPU travel over NCCL where every member has a device of
its own, which NCCL insists on; else by way of the CPU's memory.
"""

from __future__ import annotations

import hashlib
import importlib
import os
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
ABORT_S = 20.0
"""For NCCL to give up what it does."""
ABORT_FAILED = 75
"""Exit code of a process that could not abort NCCL."""
_DIGEST_BYTES = 16
_AT_ONCE = timedelta(milliseconds=1)
_POLL_MIN_S, _POLL_MAX_S = 0.00005, 0.0005
"""Polling backs off so that waiting workers leave the cores to those that compute."""


class Pending:
    """A collective under way. Whoever gives it up drops it: it keeps the group, whose end is the abort.

    Args:    kept: tensors that it reads or fills.
    """

    def __init__(self, work: Any, is_revoked: Callable[[], bool], kept: tuple[torch.Tensor, ...] = ()) -> None:
        self._work = work
        self._is_revoked = is_revoked
        self._kept = kept

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
            self._work, self._kept = None, ()  # a traceback keeps frames alive


class Staged(Pending):
    """One whose outcome is in the CPU's memory, and has to go to a device."""

    def __init__(self, pending: Pending, here: torch.Tensor, out: torch.Tensor) -> None:
        self._pending = pending
        self._here = here
        self._out = out

    def wait(self) -> None:
        """See `Pending`."""
        self._pending.wait()
        self._out.copy_(self._here)


class Messages(Pending):
    """Messages under way between some of the members.

    Args:
        works: receives and sends.
        kept: tensors that they read or fill.
    """

    def __init__(self, works: list[Any], is_revoked: Callable[[], bool], kept: tuple[torch.Tensor, ...]) -> None:
        super().__init__(None, is_revoked)
        self._is_over = threading.Event()
        self._error: RuntimeError | None = None
        self._awaited: Any = None
        threading.Thread(target=self._go_through, args=(works, kept), name="messages", daemon=True).start()

    def wait(self) -> None:
        """See `Pending`. Given up, all connections of the group are closed, and its thread ends."""
        while not self._is_over.wait(_POLL_MAX_S):
            if self._is_revoked():
                self._close()
                raise GenerationLost("the generation was revoked")
        if self._error is not None:
            raise _lost(self._error)

    def _go_through(self, works: list[Any], kept: tuple[torch.Tensor, ...]) -> None:
        try:
            for self._awaited in works:
                self._awaited.wait(timedelta(seconds=BACKSTOP_S))
        except RuntimeError as error:
            self._error = error.with_traceback(None)  # frames would keep the group
        finally:
            works.clear()
            self._awaited = None
            self._is_over.set()

    def _close(self) -> None:
        """A wait that runs out has gloo close the group's connections, which pending work holds open otherwise."""
        while not self._is_over.is_set():
            try:
                if (work := self._awaited) is not None:
                    work.wait(_AT_ONCE)
            except RuntimeError:
                return


class Communicator:
    """The collectives of one generation. Buffers handed to it must not be touched until the call returns.

    All members make the same calls in the same order.

    Args:    group: gloo.
    """

    def __init__(self, group: Any, rank: int, world: int, is_revoked: Callable[[], bool]) -> None:
        self._group = group
        self._nccl: Any = None
        self.rank = rank
        self.world = world
        self.device = torch.device("cpu")
        """Where the vectors of the training are."""
        self.hosts: list[int] = [0] * world
        """By rank, a number for the machine it is on, as the address says which others reach it by."""
        self._is_revoked = is_revoked
        self._passed = 0
        """Calls of `pass_messages`, which all members make alike."""

    def start_all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> Pending:
        """As `all_to_all`, without waiting for it."""
        return self._start(
            lambda group, out, source: group.alltoall_base(out, source, list(out_sizes), list(source_sizes)),
            out,
            source,
        )

    def all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """Send `source_sizes[r]` elements to each rank r, in order; receive `out_sizes[r]` from each.

        Shapes:  out (sum(out_sizes),), source (sum(source_sizes),), both contiguous and on the same device.
        Raises:  GenerationLost: a peer died, or the generation was revoked; out is then undefined.
        """
        self.start_all_to_all(out, source, out_sizes, source_sizes).wait()

    def pass_messages(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """As `all_to_all`, but both ways at once between any two; most may have nothing for each other.

        Raises:  GenerationLost: as above.
        """
        if source.device.type != "cpu":
            if self._nccl is not None:
                self.all_to_all(out, source, out_sizes, source_sizes)
                return
            here = torch.empty_like(out, device="cpu")
            self.pass_messages(here, source.cpu(), out_sizes, source_sizes)
            out.copy_(here)
            return
        if self._group is None or self._is_revoked():
            raise GenerationLost("the generation was revoked")
        self._passed += 1
        places, parts = torch.split(out, list(out_sizes)), torch.split(source, list(source_sizes))
        others = [(self.rank + distance) % self.world for distance in range(1, self.world)]
        try:
            works = [self._group.recv([places[one]], one, self._passed) for one in others if out_sizes[one]]
            works += [self._group.send([parts[one]], one, self._passed) for one in others if source_sizes[one]]
        except RuntimeError as error:
            raise _lost(error) from None
        places[self.rank].copy_(parts[self.rank])
        if works:
            Messages(works, self._is_revoked, (out, source)).wait()

    def start_all_gather(self, out: torch.Tensor, source: torch.Tensor) -> Pending:
        """As `all_gather`, without waiting for it."""
        return self._start(lambda group, out, source: group._allgather_base(out, source), out, source)

    def all_gather(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Gather equal vectors: out[r*n:(r+1)*n] is rank r's source of n elements.

        Raises:  GenerationLost: as above.
        """
        self.start_all_gather(out, source).wait()

    def _start(self, call: Callable[[Any, torch.Tensor, torch.Tensor], Any], out: Any, source: Any) -> Pending:
        if self._group is None or self._is_revoked():
            raise GenerationLost("the generation was revoked")
        is_here = source.device.type == "cpu"
        try:
            if is_here or self._nccl is not None:
                work = call(self._group if is_here else self._nccl, out, source)
                return Pending(work, self._is_revoked, (out, source))
            here, copy = torch.empty_like(out, device="cpu"), source.cpu()
            return Staged(Pending(call(self._group, here, copy), self._is_revoked, (here, copy)), here, out)
        except RuntimeError as error:
            raise _lost(error) from None

    def use_nccl(self, nccl: Any) -> None:
        """From here on tensors on a device travel over this group, instead of by way of the CPU's memory."""
        self._nccl = nccl

    def bury(self) -> None:
        """Drop the groups. In a thread of its own: the destructor blocks while a peer is hung rather than dead."""
        grave = [self._nccl, self._group]
        is_open, self._nccl, self._group = self._group is not None, None, None
        if is_open:
            threading.Thread(target=_rest, args=(grave,), name="graveyard", daemon=True).start()


def _rest(grave: list[Any]) -> None:
    nccl = grave[0]
    if nccl is not None:
        # Its kernels occupy the device until they are aborted. Where even that hangs, this process is of no use any
        # more, and the state lives on its peers.
        last = threading.Timer(ABORT_S, os._exit, (ABORT_FAILED,))
        last.daemon = True
        last.start()
        nccl.abort()
        del nccl
        last.cancel()
    grave.clear()


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
        group = _gloo(store, rank, record, host)
    except (RuntimeError, ValueError) as error:
        raise GenerationLost(f"generation {record.number} could not be formed: {error}") from error
    communicator = Communicator(group, rank, record.world, is_revoked)
    communicator.device = device
    try:
        identity = torch.cat([_identity(device), torch.tensor(list(_digest(host)), dtype=torch.uint8)])
        identities = torch.zeros(record.world * identity.numel(), dtype=torch.uint8)
        communicator.all_gather(identities, identity)
        rows = identities.view(record.world, -1).tolist()
        communicator.hosts = [int.from_bytes(row[-_DIGEST_BYTES:], "little") for row in rows]
        if device.type == "cuda" and may_use_nccl([row[:-_DIGEST_BYTES] for row in rows]):
            communicator.use_nccl(_nccl(dist.PrefixStore("nccl", store), rank, record.world, device))
            token = torch.zeros(record.world, dtype=torch.int64, device=device)
            communicator.all_gather(token, token[:1].clone())
    except GenerationLost:
        communicator.bury()
        raise
    except (RuntimeError, ValueError) as error:
        communicator.bury()
        raise GenerationLost(f"generation {record.number} could not be formed: {error}") from error
    return communicator


def may_use_nccl(identities: Sequence[Sequence[int]]) -> bool:
    """Whether all members have NCCL, and each a device of its own. By rank: what `_identity` says."""
    devices = {tuple(device) for _, *device in identities}
    return all(has_nccl for has_nccl, *_ in identities) and len(devices) == len(identities)


def _identity(device: torch.device) -> torch.Tensor:
    """17 bytes: whether there is NCCL, and what tells the device from others; zeros for a CPU."""
    if device.type != "cuda":
        return torch.zeros(17, dtype=torch.uint8)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return torch.tensor([int(dist.is_nccl_available()), *_digest(uuid)], dtype=torch.uint8)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _gloo(store: Any, rank: int, record: GenerationRecord, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=FORM_TIMEOUT_S)
    options._threads = GLOO_THREADS
    group = dist.ProcessGroupGloo(store, rank, record.world, options)
    group._set_default_timeout(timedelta(seconds=BACKSTOP_S))
    return group


def _nccl(store: Any, rank: int, world: int, device: torch.device) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=BACKSTOP_S)
    options.config.blocking = 0  # a communicator that is still being made can be aborted
    torch.cuda.set_device(device)
    return dist.ProcessGroupNCCL(store, rank, world, options)
