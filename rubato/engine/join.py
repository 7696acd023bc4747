"""Live join: joiners are brought up to date in the background, while the members train on.

    capture   all members have formed the joiners' group: each captures its share of the state of one boundary, `sync`
    follow    the members send it, and then each result they complete, in rounds; the joiner runs user code on every
              result without a microbatch of its own, and so repeats the updates it missed
    switch    the joiners are at most `CLOSE` results behind, or come no nearer: the members may switch. They close
              their journals at the boundary and go on; the last round is on its way while they compute the next step,
              in which the joiners have no microbatch yet (the bridge). In its exchange all meet. What is wrong with the
              joiners' state shows in the next one, before anything counts that they computed (`agreement`)

So nothing of the size of the model is sent or copied while anybody waits. It is what live migration does to virtual
machines (pre-copy, Clark et al. 2005, NSDI), with reduced gradients instead of dirty pages.
"""

from __future__ import annotations

import itertools
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from rubato.engine.comm import Communicator
from rubato.engine.entry import Key
from rubato.engine.header import ALIGNMENT
from rubato.engine.reduction import Reduced
from rubato.engine.results import Completed, pack_result, result_bytes, unpack_result
from rubato.engine.sync import Received, Snapshot, receive_snapshot, send_snapshot, take_in, tell
from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord

CLOSE = 1
"""Results a joiner may be behind when the members become ready to switch: the one that they just completed."""
PATIENCE = 16
"""Results it may repeat and come no nearer: one that is too slow to catch up is waited for at the switch."""
BACKLOG_BYTES = 2 * 2**30
"""So is one that is behind by so much: members and joiner keep what it has not repeated yet."""
BACKLOG_STATES = 4
"""Or by so many times the size of the state: where links carry less than the training makes it only becomes more, and
it is what all wait for at the switch."""
LEAST_BACKLOG_BYTES = 16 * 2**20
"""But not by less than this: of a small state that is soon behind, and soon there."""
ROUND_BYTES = 64 * 2**20
"""Results that travel at a time, where one is not larger."""
_IDLE_S = 0.02
"""The longest between two rounds: how far the joiners are must be heard of, too."""
_ENTRY = struct.Struct(f"<3q{ALIGNMENT - 24}x")
"""Before each result of a round: step, ordinal, bytes. A whole cache line: vectors are used where they lie."""


class _Party:
    """What both sides of a join do, each in a thread of its own."""

    def __init__(self, record: GenerationRecord, comm: Communicator) -> None:
        self.record = record
        self._comm = comm
        self.joiners, self.holders = record.joiners, record.holders
        self._changed = threading.Condition()
        self._failure: GenerationLost | None = None
        self._thread = threading.Thread(target=self._run, name=f"join-{record.number}", daemon=True)

    def _run(self) -> None:
        try:
            self._work()
        except GenerationLost as error:
            self._fail(GenerationLost(str(error)))  # the one that was raised holds frames, and what is in them
        except Exception as error:  # also what torch may raise: whoever waits for this thread must hear of it
            self._fail(GenerationLost(f"{type(error).__name__}: {error}"))
        finally:
            with self._changed:
                self._changed.notify_all()

    def _fail(self, error: GenerationLost) -> None:
        with self._changed:
            self._failure = error
        self._comm.bury()  # the others of this group notice at once

    def _work(self) -> None:
        raise NotImplementedError

    def _table(self, count: int, is_closed: bool) -> tuple[int, int, bool]:
        """First part of a round: how far everybody is.

        Args:    count: results that this worker has, or has repeated.  is_closed: it has switched; none follows.
        Returns: results that all holders have, that all joiners have repeated; whether this round is the last.
        """
        table = torch.zeros(self._comm.world * 2, dtype=torch.int64)
        self._comm.all_gather(table, torch.tensor([count, int(is_closed)]))
        rows = table.view(-1, 2).tolist()
        available = min(rows[rank][0] for rank in self.holders)
        reached = min(rows[rank][0] for rank in self.joiners)
        return available, reached, all(rows[rank][1] for rank in self.holders)

    def _payload(self, mine: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Second part of a round: the bytes of all holders, at each joiner."""
        sizes = torch.zeros(self._comm.world, dtype=torch.int64)
        self._comm.all_gather(sizes, torch.tensor([mine.numel()]))
        listed = [int(size) for size in sizes]
        if self._comm.rank in self.joiners:
            return listed, take_in(self._comm, listed)
        tell(self._comm, self.joiners, mine)
        return listed, torch.empty(0, dtype=torch.uint8)


class Feeder(_Party):
    """A member's side.

    Args:
        capture: called with (part, parts) at once: this member's snapshot of the present boundary.
        on_ready: called in the feeder's thread when the members may switch.
        on_failed: likewise, where the joiners cannot be brought up to date; the members train on.
    """

    def __init__(
        self,
        record: GenerationRecord,
        comm: Communicator,
        capture: Callable[[int, int], Snapshot],
        on_ready: Callable[[int], None],
        on_failed: Callable[[int, str], None],
    ) -> None:
        super().__init__(record, comm)
        self._part = self.holders.index(comm.rank)
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._journal: deque[torch.Tensor] = deque()
        self._count = 0
        self._result_bytes = 0
        """Of the largest result so far: the tables of evaluations and streams between them are small."""
        self._reached = 0
        """Results that all joiners have repeated, as far as is known."""
        self._is_closed = self._is_told = False
        self._is_copied = threading.Event()
        self._snapshot: Snapshot | None = capture(self._part, len(self.holders))
        self._most_bytes = min(BACKLOG_BYTES, max(BACKLOG_STATES * self._snapshot.total_bytes, LEAST_BACKLOG_BYTES))
        self._thread.start()

    def wait_copied(self) -> None:
        """Block until parameters and optimizer state may change."""
        self._is_copied.wait()

    def add(self, completed: Completed) -> None:
        """Take in this member's share of a result, as it was completed: a copy."""
        if self._failure is not None:
            return  # the joiners are given up, and nobody takes what is added
        share = self._share_of(completed)
        size = result_bytes(share)
        packed = pack_result(share, _ENTRY.pack(*completed.key, size))
        with self._changed:
            self._journal.append(packed)
            self._count += 1
            self._result_bytes = max(self._result_bytes, size * len(self.holders))
            is_far = (self._count - self._reached) * self._result_bytes >= self._most_bytes
            self._changed.notify_all()
        if is_far:
            self._tell_ready()  # here, because the state may still be on its way

    def _share_of(self, completed: Completed) -> Completed:
        """The first holder tells headers and tables; vectors are shared out."""
        result, parts = completed.result, len(self.holders)
        if isinstance(result, torch.Tensor):
            return completed if self._part == 0 else Completed(completed.key, result[:0])
        assert result is not None
        length = sum(chunk.numel() for chunk in result.chunks)
        piece = _slice(result.chunks, length * self._part // parts, length * (self._part + 1) // parts)
        is_first = self._part == 0
        return Completed(
            completed.key, Reduced(piece, result.headers if is_first else (), result.integers if is_first else b"")
        )

    def close(self) -> None:
        """The members switch at this boundary: what is in the journal now is the last."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether the last round is: the group is free."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Block until the last round is over: before that nobody else may use the group.

        Raises:  GenerationLost: a member was lost meanwhile.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def has_failed(self) -> bool:
        """Whether the joiners are given up."""
        return self._failure is not None

    def _work(self) -> None:
        self._send_state()
        sent, is_last = 0, False
        nearest, nearest_at = sys.maxsize, 0
        while not is_last:
            with self._changed:
                if sent == self._count and not self._is_closed:
                    self._changed.wait(_IDLE_S)
                count = self._count
                offered = min(count, sent + max(1, ROUND_BYTES // max(1, self._result_bytes)))
                is_all = self._is_closed and offered == count
            available, reached, is_last = self._table(offered, is_all)
            self._payload(self._take(available - sent))
            sent = available
            with self._changed:
                self._reached = reached
            behind = (sent if offered == count else count) - reached
            if reached and behind < nearest:  # before that it installs the state
                nearest, nearest_at = behind, reached
            if behind <= CLOSE or reached - nearest_at >= PATIENCE or (reached and behind - nearest >= PATIENCE):
                self._tell_ready()

    def _send_state(self) -> None:
        snapshot, self._snapshot = self._snapshot, None  # gone when it is sent, and where it cannot be
        assert snapshot is not None
        try:
            snapshot.copy()
        finally:
            self._is_copied.set()
        send_snapshot(self._comm, snapshot, self.joiners)

    def _tell_ready(self) -> None:
        with self._changed:
            is_news, self._is_told = not self._is_told, True
        if is_news:
            self._on_ready(self.record.number)

    def _take(self, results: int) -> torch.Tensor:
        """The oldest results of the journal, as one run of bytes."""
        with self._changed:
            parts = [self._journal.popleft() for _ in range(results)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def _fail(self, error: GenerationLost) -> None:
        super()._fail(error)
        with self._changed:
            self._journal.clear()
        self._on_failed(self.record.number, str(error))


class Follower(_Party):
    """A joiner's side."""

    def __init__(self, record: GenerationRecord, comm: Communicator, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(record, comm)
        self._dtype = dtype
        self._device = device
        self._received: Received | None = None
        self._pieces = 0
        """Of the state, that have come."""
        self._results: deque[Completed] = deque()
        self._asked = 0
        self._is_over = False
        self._thread.start()

    def snapshot(self, alive: Callable[[], None] = lambda: None) -> Received:
        """Block until the state is there.

        Args:    alive: called now and then while it comes: a slow link is no reason to be taken for hung.
        Raises:  GenerationLost: a member or another joiner was lost.
        """
        seen = 0
        with self._changed:
            while self._received is None and self._failure is None:
                self._changed.wait()
                if self._pieces > seen:
                    seen = self._pieces
                    alive()
            received, self._received = self._received, None
            if received is None:
                assert self._failure is not None
                raise self._failure
            return received

    def next(self) -> Completed | None:
        """The last result is repeated: block until the next one is there.

        Returns: None: nothing is missing any more, and the group is free.

        Raises:  GenerationLost: as above.
        """
        with self._changed:
            self._asked += 1
            self._changed.wait_for(lambda: self._results or self._is_over or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if not self._results:
                return None
            return self._results.popleft()

    def _note_piece(self) -> None:
        with self._changed:
            self._pieces += 1
            self._changed.notify_all()

    def _work(self) -> None:
        received = receive_snapshot(self._comm, self._note_piece)
        with self._changed:
            self._received = received
            self._changed.notify_all()
        del received
        is_last = False
        while not is_last:
            with self._changed:
                repeated = max(0, self._asked - 1)
            _, _, is_last = self._table(repeated, False)
            sizes, run = self._payload(torch.empty(0, dtype=torch.uint8))
            shares = _shares(run, sizes)
            with self._changed:
                for parts in zip(*(shares[rank] for rank in self.holders if shares), strict=True):
                    self._results.append(self._whole(parts))
                self._is_over = is_last
                self._changed.notify_all()

    def _whole(self, parts: Sequence[tuple[Key, torch.Tensor]]) -> Completed:
        """The shares of one result, put together."""
        results = [unpack_result(packed, self._dtype, self._device) for _, packed in parts]
        first = results[0]
        if isinstance(first, torch.Tensor):
            return Completed(parts[0][0], first)
        chunks = tuple(chunk for result in results if isinstance(result, Reduced) for chunk in result.chunks)
        return Completed(parts[0][0], Reduced(chunks, first.headers, first.integers))


def _slice(chunks: Sequence[torch.Tensor], begin: int, end: int) -> tuple[torch.Tensor, ...]:
    """Elements begin..end of the vector that the chunks make up, in pieces."""
    found, at = [], 0
    for chunk in chunks:
        low, high = max(begin - at, 0), min(end - at, chunk.numel())
        if low < high:
            found.append(chunk.reshape(-1)[low:high])
        at += chunk.numel()
    return tuple(found)


def _shares(run: torch.Tensor, sizes: Sequence[int]) -> list[list[tuple[Key, torch.Tensor]]]:
    """The results in a round's bytes, by the rank that sent them; nothing where the round was empty."""
    ends = list(itertools.accumulate(sizes))
    return [_entries(run[end - size : end]) for size, end in zip(sizes, ends, strict=True)] if run.numel() else []


def _entries(run: torch.Tensor) -> list[tuple[Key, torch.Tensor]]:
    found, at = [], 0
    while at < run.numel():
        step, ordinal, size = _ENTRY.unpack(bytes(run[at : at + _ENTRY.size].numpy()))
        at += _ENTRY.size
        found.append(((step, ordinal), run[at : at + size]))
        at += size
    return found
