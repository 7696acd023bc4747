"""The state of one boundary on its way to joiners, while the members train on.

A member captures at the boundary and copies its share in a thread of its own, while the next microbatches are computed:
parameters and optimizer state do not change before the step's reduction is delivered, all else is copied at once. Where
they do (`local_updates`), its share is copied at once.
The sizes travel by all-gather; the document (scalars and layout) and the shares as messages, to all joiners at once,
piece by piece. Cost: state bytes / M sent by each of M members, per joiner.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rubato.checkpoint.layout import bytes_tensor, empty_like_layout, layout, raw_bytes
from rubato.engine.comm import Communicator
from rubato.engine.shares import overlaps, share_bounds, total_bytes
from rubato.engine.state import TrainingState


class Snapshot:
    """One member's part of the state of a boundary.

    Args:
        extra: what a joiner must know beside the state.
        part: index of this member among the `parts` that have the state.
    """

    def __init__(self, state: TrainingState, extra: dict[str, Any], part: int, parts: int) -> None:
        document, self._tensors = state.capture() if state.is_steady else state.encode()
        told = {"document": document, "layout": layout(self._tensors), "extra": extra}
        self.text = json.dumps(told).encode() if part == 0 else b""
        self.total_bytes = total_bytes(self._tensors)
        """Of the whole state."""
        self._begin, self._end = share_bounds(self.total_bytes, parts)[part]
        self.share = torch.empty(0, dtype=torch.uint8)
        self._is_copied = False
        if not state.is_steady:
            self.copy()

    def copy(self) -> None:
        """Make the share independent of the state; before it returns the state must not change."""
        if self._is_copied:
            return
        share = torch.empty(self._end - self._begin, dtype=torch.uint8)
        for tensor, first, last, offset in overlaps(self._tensors, self._begin, self._end):
            share[offset : offset + last - first].copy_(raw_bytes(tensor)[first:last])
        self.share, self._tensors, self._is_copied = share, [], True


@dataclass(frozen=True)
class Received:
    """The state of a boundary, whole."""

    document: dict[str, Any]
    tensors: list[torch.Tensor]
    extra: dict[str, Any]


PIECE_BYTES = 16 * 2**20
"""Of each share, at a time: the joiner sees that something comes, also over a slow link, and holds the state once."""


def send_snapshot(comm: Communicator, snapshot: Snapshot, joiners: Sequence[int]) -> None:
    """A member's side. Raises GenerationLost: a member was lost."""
    sizes = _gather_sizes(comm, len(snapshot.text), snapshot.share.numel())
    text = bytes_tensor(snapshot.text)
    tell(comm, joiners, text)
    for at, _ in _pieces(sizes[:, 1].tolist()):
        tell(comm, joiners, snapshot.share[at : at + PIECE_BYTES])


def receive_snapshot(comm: Communicator, on_piece: Callable[[], None] = lambda: None) -> Received:
    """A joiner's side. Raises GenerationLost: a member was lost.

    Args:    on_piece: called when a piece has come.
    """
    sizes = _gather_sizes(comm, 0, 0)
    shares = sizes[:, 1].tolist()
    begins = [0, *itertools.accumulate(shares)]
    told = json.loads(bytes(take_in(comm, sizes[:, 0].tolist()).numpy()))
    received = Received(told["document"], empty_like_layout(told["layout"]), told["extra"])
    for at, lengths in _pieces(shares):
        run = take_in(comm, lengths)
        for begin, piece in zip(begins, torch.split(run, lengths), strict=False):
            _place(received.tensors, begin + at, piece)
        on_piece()
    return received


def _place(tensors: Sequence[torch.Tensor], begin: int, piece: torch.Tensor) -> None:
    """Copy bytes of the run that the tensors make up to where they belong."""
    for tensor, first, last, offset in overlaps(tensors, begin, begin + piece.numel()):
        raw_bytes(tensor)[first:last].copy_(piece[offset : offset + last - first])


def _pieces(shares: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """How shares of these sizes travel: where in each a piece begins, and its length by rank."""
    for at in range(0, max(shares), PIECE_BYTES):
        yield at, [min(max(size - at, 0), PIECE_BYTES) for size in shares]


def _gather_sizes(comm: Communicator, *sizes: int) -> torch.Tensor:
    """(world, n) int64: what every member is going to send."""
    table = torch.zeros(comm.world * len(sizes), dtype=torch.int64)
    comm.all_gather(table, torch.tensor(sizes, dtype=torch.int64))
    return table.view(comm.world, len(sizes))


def tell(comm: Communicator, receivers: Sequence[int], source: torch.Tensor) -> None:
    """What a member has for some others, who `take_in` that of all.

    Raises:  GenerationLost: a member was lost.
    """
    comm.pass_messages([], [(receiver, source) for receiver in receivers])


def take_in(comm: Communicator, sizes: Sequence[int]) -> torch.Tensor:
    """What others tell, in the order of the ranks.

    Args:    sizes: by rank, its bytes.
    Returns: (sum(sizes),) uint8.
    Raises:  GenerationLost: a member was lost.
    """
    out = torch.empty(sum(sizes), dtype=torch.uint8)
    comm.pass_messages(list(enumerate(torch.split(out, list(sizes)))), [])
    return out
