"""The communicator seam: the only file that touches semi-private parts of torch.distributed.

One communicator belongs to one generation. It is built once, never repaired, and buried when the generation is over.
Two things are done with it: all tell all something small (all-gather), whose `Work` can be polled on gloo; and
messages from some to some, whose cannot (`is_completed` never turns true): there a thread waits. So every wait can be
interrupted by a revoke.

Why messages and no all-to-all: gloo sends when the receiver has said that it is ready, and that is said on the
connection on which it sends itself. In an all-to-all it is said behind one's own message to the same peer, so that two
large messages between two workers pass one after the other; message by message it is said before.

A peer's death does not propagate on gloo: its ring neighbours fail in milliseconds, the others hang. Dropping the
process group *is* the abort, so whoever sees an error drops it at once; so does whoever hears the controller's revoke.

Tensors in the memory of the CPU travel over gloo. Those of a GPU travel over NCCL where every member has a device of
its own, which NCCL insists on; else by way of the CPU's memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import queue
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
CLOSE_S = 20.0
"""For messages under way to be given up."""
MARKED_BYTES = 1 << 16
"""Messages that are larger take long enough to be lost amid."""
ABORT_FAILED = 75
"""Exit code of a process that could not abort NCCL."""
_DIGEST_BYTES = 16
_AT_ONCE = timedelta(milliseconds=1)
_POLL_MIN_S, _POLL_MAX_S = 0.00005, 0.0005
"""Polling backs off so that waiting workers leave the cores to those that compute."""
_LOOK_S = 0.002
"""How often who waits for a thread looks for a revoke."""
_TAGS = 1 << 30
"""Messages from one member to another are numbered modulo so many."""

Message = tuple[int, torch.Tensor]
"""The other member's rank, and what is sent or filled: contiguous, and as long as the other one says."""


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
    """One whose outcome is in the CPU's memory, and has to go to a device.

    Args:    outcome: what it fills, and where that belongs.
    """

    def __init__(self, pending: Pending, outcome: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._pending = pending
        self._outcome = outcome

    def wait(self) -> None:
        """See `Pending`."""
        self._pending.wait()
        for here, out in self._outcome:
            out.copy_(here)


class Messages(Pending):
    """Messages under way to this member on gloo.

    Args:
        works: receives, in the order in which to wait for them.
        kept: tensors that they fill.
    """

    def __init__(self, works: list[Any], is_revoked: Callable[[], bool], kept: tuple[torch.Tensor, ...]) -> None:
        super().__init__(None, is_revoked, kept)
        self.works = works
        self.error: Exception | None = None
        self.is_over = threading.Event()

    def poll(self) -> bool:
        """Whether it is over, without waiting for it.

        Raises:  GenerationLost: as `wait`.
        """
        if self.is_over.is_set():
            self.wait()
            return True
        if self._is_revoked():
            raise GenerationLost("the generation was revoked")
        return False

    def wait(self) -> None:
        """See `Pending`."""
        while not self.is_over.wait(_LOOK_S):
            if self._is_revoked():
                raise GenerationLost("the generation was revoked")
        self._kept = ()
        if self.error is not None:
            raise _lost(self.error)


class Waiter:
    """A thread that waits for the messages of a gloo group, in the order in which they were begun."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Messages | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._go_through, name="messages", daemon=True)
        self._thread.start()

    def wait_for(self, messages: Messages) -> None:
        """From here on `messages` turns over when it is."""
        self._begun.put(messages)

    def end(self) -> None:
        """The connections are closed, so that what is under way fails."""
        self._begun.put(None)
        self._thread.join(CLOSE_S)

    def _go_through(self) -> None:
        while (messages := self._begun.get()) is not None:
            for work in messages.works:
                try:
                    work.wait(timedelta(seconds=BACKSTOP_S))
                except Exception as error:
                    messages.error = error.with_traceback(None)  # frames would keep the group
                    break
            work = None
            messages.works.clear()
            messages.is_over.set()
            del messages  # the next may be long in coming


class Communicator:
    """What the members of one generation tell each other. Tensors must not be touched until it is waited for.

    Args:    group: gloo.
    """

    def __init__(self, group: Any, rank: int, world: int, is_revoked: Callable[[], bool]) -> None:
        self._group = group
        self._nccl: Any = None
        self.rank = rank
        self.world = world
        self._others = [other for other in range(world) if other != rank]
        self.device = torch.device("cpu")
        """Where the vectors of the training are."""
        self.hosts: list[int] = [0] * world
        """By rank, a number for the machine it is on, as the address says which others reach it by."""
        self._is_revoked = is_revoked
        self._waiters: dict[int | None, Waiter] = {}
        """By the member that they wait for apart."""
        self._is_changing = threading.Lock()
        """Held while messages begin, and while the groups are dropped."""
        self._unconfirmed: list[Any] = []
        """Sends, which keep what they read."""
        self._sent_apart: dict[int, list[Any]] = {}
        """By member, the last ones."""
        self._mark = torch.zeros(1, dtype=torch.uint8)
        self._sent = [0] * world
        """By rank, messages to it so far; each has a number, which both sides count."""
        self._received = [0] * world

    def start_messages(self, received: Sequence[Message], sent: Sequence[Message]) -> Pending:
        """Messages from some of the others and to some, on their way at once, and both ways between any two.

        What one member sends another arrives in that order, within a call and from call to call; who has nothing to
        say to another has no part in what that one does. Empty ones are left out. It is over when all is received that
        is to be; what is sent must stay as it is until the next `confirm`, or until that follows from what others say.

        Shapes:  (n,), contiguous; all of a call on the same device.
        Raises:  GenerationLost: a peer died, or the generation was revoked; what was to be filled is then undefined.
        """
        # Each begins with another neighbour, so that not all turn to the same one first.
        received = sorted(
            (one for one in received if one[1].numel()), key=lambda one: (self.rank - one[0]) % self.world
        )
        sent = sorted((one for one in sent if one[1].numel()), key=lambda one: (one[0] - self.rank) % self.world)
        tensors = tuple(tensor for _, tensor in (*received, *sent))
        if self._is_revoked():
            raise GenerationLost("the generation was revoked")
        try:
            if tensors and tensors[0].device.type != "cpu":
                if self._nccl is not None:
                    return Pending(self._pass_by_nccl(received, sent), self._is_revoked, tensors)
                return self._pass_by_the_cpu(received, sent)
            return self._pass_by_gloo(received, sent)
        except RuntimeError as error:
            raise _lost(error) from None

    def start_apart(self, other: int, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> Messages:
        """As `start_messages` with one other member, but in the CPU's memory, and waited for by a thread for that one.

        So whoever has several under way learns which is over first. What is sent counts as received when something is
        sent to it the next time: its answer must have come by then.

        Raises:  GenerationLost: as above.
        """
        try:
            return self._pass_by_gloo([(other, one) for one in received], [(other, one) for one in sent], apart=other)
        except RuntimeError as error:
            raise _lost(error) from None

    def _pass_by_the_cpu(self, received: Sequence[Message], sent: Sequence[Message]) -> Pending:
        here = [(rank, torch.empty_like(out, device="cpu")) for rank, out in received]
        distinct = {id(tensor): tensor for _, tensor in sent}  # the same one often goes to several
        copies = {key: tensor.cpu() for key, tensor in distinct.items()}
        pending = self._pass_by_gloo(here, [(rank, copies[id(tensor)]) for rank, tensor in sent])
        return Staged(pending, [(came, out) for (_, came), (_, out) in zip(here, received, strict=True)])

    def _pass_by_gloo(self, received: Sequence[Message], sent: Sequence[Message], apart: int | None = None) -> Messages:
        """Behind each large message there is a mark, and the receiver waits for that first.

        gloo tells a receive that has not begun that its connection has ended. It does not tell one that is half done,
        nor a send: nobody waits for these.
        """
        with self._is_changing:
            if self._group is None:
                raise GenerationLost("the generation was revoked")
            works, behind = [], torch.empty(1, dtype=torch.uint8)
            for rank, tensor in received:
                work = self._group.recv([tensor], rank, _count(self._received, rank))
                if _is_marked(tensor):
                    works.append(self._group.recv([behind], rank, _count(self._received, rank)))
                works.append(work)
            sends = self._unconfirmed
            if apart is not None and sent:
                sends = self._sent_apart[apart] = []
            for rank, tensor in sent:
                for one in (tensor, self._mark) if _is_marked(tensor) else (tensor,):
                    sends.append(self._group.send([one], rank, _count(self._sent, rank)))
            messages = Messages(works, self._is_revoked, tuple(tensor for _, tensor in received))
            if works:
                if apart not in self._waiters:
                    self._waiters[apart] = Waiter()
                self._waiters[apart].wait_for(messages)
            else:
                messages.is_over.set()
            return messages

    def _pass_by_nccl(self, received: Sequence[Message], sent: Sequence[Message]) -> Any:
        """As one operation: NCCL takes turns with single ones."""
        nccl = self._nccl
        nccl._start_coalescing()
        try:
            for ways, call in ((received, nccl.recv), (sent, nccl.send)):
                for rank, tensor in ways:
                    call([tensor], rank, 0)
        except RuntimeError:
            with contextlib.suppress(RuntimeError):  # else this thread would stay in it
                nccl._end_coalescing()
            raise
        return nccl._end_coalescing()

    def pass_messages(self, received: Sequence[Message], sent: Sequence[Message]) -> None:
        """As `start_messages`, and waits for what is received."""
        self.start_messages(received, sent).wait()

    def tell_all(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """An element of this member to all others, and theirs: out[r] is rank r's."""
        received = [(rank, out[rank : rank + 1]) for rank in self._others]
        self.pass_messages(received, [(rank, source) for rank in self._others])

    @property
    def sent(self) -> int:
        """Messages that were sent, and of which it is not known whether they have been received."""
        return len(self._unconfirmed)

    def forget(self, count: int) -> None:
        """The first of these have been received, as follows from what others have said."""
        del self._unconfirmed[:count]

    def confirm(self) -> None:
        """Wait until all others have received what they were sent: from then on it may change, and its sender leave.

        All members call it, each when it has waited for what it receives.

        Raises:  GenerationLost: as above.
        """
        token, count = torch.empty(self.world, dtype=torch.uint8), len(self._unconfirmed)
        self.tell_all(token, self._mark)
        del self._unconfirmed[:count]

    def all_gather(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Gather equal vectors: out[r*n:(r+1)*n] is rank r's source of n elements. All members call it alike.

        It confirms, too.

        Raises:  GenerationLost: as above.
        """
        count = len(self._unconfirmed)
        self.start_all_gather(out, source).wait()
        del self._unconfirmed[:count]

    def start_all_gather(self, out: torch.Tensor, source: torch.Tensor) -> Pending:
        """As `all_gather`, without waiting for it."""
        if self._group is None or self._is_revoked():
            raise GenerationLost("the generation was revoked")
        is_here = source.device.type == "cpu"
        try:
            if is_here or self._nccl is not None:
                work = (self._group if is_here else self._nccl)._allgather_base(out, source)
                return Pending(work, self._is_revoked, (out, source))
            here, copy = torch.empty_like(out, device="cpu"), source.cpu()
            work = self._group._allgather_base(here, copy)
            return Staged(Pending(work, self._is_revoked, (here, copy)), [(here, out)])
        except RuntimeError as error:
            raise _lost(error) from None

    def use_nccl(self, nccl: Any) -> None:
        """From here on tensors on a device travel over this group, instead of by way of the CPU's memory."""
        self._nccl = nccl

    def bury(self) -> None:
        """Drop the groups. In a thread of its own: the destructor blocks while a peer is hung rather than dead."""
        with self._is_changing:
            sends = [self._unconfirmed, *self._sent_apart.values()]
            grave = [self._nccl, list(self._waiters.values()), self._group, sends]
            is_open, self._nccl, self._group = self._group is not None, None, None
            self._waiters, self._unconfirmed, self._sent_apart = {}, [], {}
        if is_open:
            threading.Thread(target=_rest, args=(grave,), name="graveyard", daemon=True).start()


def _rest(grave: list[Any]) -> None:
    nccl, waiters, group, _ = grave
    if nccl is not None:
        # Its kernels occupy the device until they are aborted. Where even that hangs, this process is of no use any
        # more, and the state lives on its peers.
        last = threading.Timer(ABORT_S, os._exit, (ABORT_FAILED,))
        last.daemon = True
        last.start()
        nccl.abort()
        del nccl
        last.cancel()
    with contextlib.suppress(RuntimeError):  # a wait that runs out has gloo close all connections of the group
        group.recv_anysource([torch.empty(1)], _TAGS).wait(_AT_ONCE)
    for waiter in waiters:
        waiter.end()
    del waiters, group
    grave.clear()


def _is_marked(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() > MARKED_BYTES


def _count(counts: list[int], rank: int) -> int:
    counts[rank] = (counts[rank] + 1) % _TAGS
    return counts[rank]


def _lost(error: Exception) -> GenerationLost:
    error.__traceback__ = None  # its frames would keep the group
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
            communicator.tell_all(token, token[rank : rank + 1].clone())  # NCCL connects at the first message
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
