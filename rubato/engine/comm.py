"""The communicator seam: the only file that touches semi-private parts of torch.distributed.

One communicator belongs to one generation. It is built once, never repaired, and buried when the generation is over.
Two things are done with it: collectives of all, of something small (all-gather) or of a sum as the backend has it
(all-reduce), whose `Work` can be polled on gloo; and messages from some to some, whose cannot (`is_completed` never
turns true): there a thread waits. So every wait can be interrupted by a revoke. Messages are told apart by their
numbers, and gloo tells collectives apart by numbers of their own, so that both may be under way at once.

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
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from rubato.engine.pending import BACKSTOP_S, Messages, Pending, Staged, Waiter, lost
from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord

dist: Any = importlib.import_module("torch.distributed")
"""Untyped on purpose: what is used of it here is half private, and its annotations depend on how torch was built."""

FORM_TIMEOUT_S = 30.0
"""For building a group: all members are alive and warm when it is asked for."""
GLOO_THREADS = 4
"""Collectives of a group that can be under way at once."""
ABORT_S = 20.0
"""For NCCL to give up what it does."""
MARKED_BYTES = 1 << 16
"""Messages that are larger take long enough to be lost amid."""
ABORT_FAILED = 75
"""Exit code of a process that could not abort NCCL."""
_DIGEST_BYTES = 16
_AT_ONCE = timedelta(milliseconds=1)
_TAGS = 1 << 30
"""Messages from one member to another are numbered modulo so many."""

Message = tuple[int, torch.Tensor]
"""The other member's rank, and what is sent or filled: contiguous, and as long as the other one says."""


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
        self._summing: list[torch.Tensor] = []
        """What a sum under way reads and fills: also where it is given up, until the group is at rest."""
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
            raise lost(error) from None

    def start_apart(self, other: int, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> Messages:
        """As `start_messages` with one other member, but in the CPU's memory, and waited for by a thread for that one.

        So whoever has several under way learns which is over first. What is sent counts as received when something is
        sent to it the next time: its answer must have come by then.

        Raises:  GenerationLost: as above.
        """
        try:
            return self._pass_by_gloo([(other, one) for one in received], [(other, one) for one in sent], apart=other)
        except RuntimeError as error:
            raise lost(error) from None

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
            raise lost(error) from None

    def all_reduce(self, total: torch.Tensor) -> None:
        """The sum of all members' vectors, in place, as the backend has it; all members call it alike.

        gloo's is a ring, of 2n(P-1)/P bytes from each; NCCL chooses one. Equal bits on all members.

        Shapes:  (n,), contiguous, equal on all members.
        Raises:  GenerationLost: as above. It may be written to until the group is at rest, so nobody goes on with it.
        """
        group, nccl = self._group, self._nccl
        if group is None or self._is_revoked():
            raise GenerationLost("the generation was revoked")
        if not total.numel():
            return
        is_here = total.device.type == "cpu"
        summed = total if is_here or nccl is not None else total.cpu()
        self._summing.append(summed)
        try:
            work = (group if summed.device.type == "cpu" else nccl).allreduce([summed])
        except RuntimeError as error:
            raise lost(error) from None
        finally:
            del group, nccl  # a traceback keeps frames alive, and their end is the abort
        Pending(work, self._is_revoked, (summed,)).wait()
        self._summing.clear()
        if summed is not total:
            total.copy_(summed)

    def use_nccl(self, nccl: Any) -> None:
        """From here on tensors on a device travel over this group, instead of by way of the CPU's memory."""
        self._nccl = nccl

    def bury(self) -> None:
        """Drop the groups. In a thread of its own: the destructor blocks while a peer is hung rather than dead."""
        with self._is_changing:
            sends = [self._unconfirmed, *self._sent_apart.values()]
            grave = [self._nccl, list(self._waiters.values()), self._group, [*sends, self._summing]]
            is_open, self._nccl, self._group = self._group is not None, None, None
            self._waiters, self._unconfirmed, self._sent_apart, self._summing = {}, [], {}, []
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
