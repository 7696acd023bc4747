"""The exchange of a step's gradients while its last backward pass still computes them.

As soon as a gradient is accumulated it is taken into the vector of the pass, and added up with what this worker holds;
as soon as all gradients of a bucket are, a thread exchanges it. The parts that are held stay as they are until the pass
is over, and so do the gradients. So this is a bet that may be lost: where the program changes a gradient after it was
sent (a second backward, clipping in the loop), the pass is packed as any other, and the header asks for the whole
exchange once more.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rubato.engine.buckets import Bucket
from rubato.engine.errand import Errand
from rubato.engine.flat import FlatLayout
from rubato.engine.reduction import Reduction
from rubato.engine.tree import Node


class Ahead:
    """A reduction whose buckets a thread exchanges when they are let go."""

    def __init__(self, reduction: Reduction, nodes: Mapping[Node, torch.Tensor]) -> None:
        self._reduction = reduction
        self._nodes = nodes
        self._ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._errand = Errand("exchange", torch.device("cpu"), self._work)

    def let(self) -> None:
        """The next bucket is complete."""
        self._ready.put(True)

    def join(self) -> Reduction:
        """Block until all that was let go is exchanged.

        Raises:  GenerationLost, ProtocolError: as `Exchange.reduce`.
        """
        self._ready.put(False)
        return self._errand.result()

    def wait(self) -> None:
        """Block until the thread is over, whatever became of it."""
        self._ready.put(False)
        self._errand.wait()

    def _work(self) -> Reduction:
        while self._ready.get():
            self._reduction.next(self._nodes)
        return self._reduction


class Overlap:
    """One backward pass whose gradients are exchanged while it goes on.

    Args:
        lefts: sum by sum, the vectors to which the pass is added, in order.
        total: (L,), to be filled with the outcome.
        ahead: exchanges `total` and whatever else this worker holds.
        is_watched: compare the gradients that were sent with those of the end, bit by bit; otherwise only whether they
            are the same tensors, unchanged as far as autograd knows (it does not see changes of `grad.data`).
    """

    def __init__(
        self,
        flat: FlatLayout,
        lefts: Sequence[Sequence[torch.Tensor]],
        total: torch.Tensor,
        ahead: Ahead,
        *,
        is_watched: bool,
    ) -> None:
        self.total = total
        self.ahead = ahead
        self._flat = flat
        self._buckets = flat.buckets[:-1]
        self._lefts = lefts
        self._is_watched = is_watched
        self._share: float | None = None
        self._is_inside = False
        self._sent = 0
        self._taken: dict[int, tuple[torch.Tensor | None, int, int]] = {}
        """By parameter: the gradient that was taken, and its mark."""
        # The nodes that accumulate live as long as somebody holds them, and their hooks with them.
        self._accumulators = {
            index: torch.autograd.graph.get_gradient_edge(parameter).node
            for index, (_, parameter) in enumerate(flat.parameters)
            if parameter.requires_grad
        }
        self._hooks = [node.register_hook(self._hook(index)) for index, node in self._accumulators.items()]

    def begin_backward(self, share: float) -> None:
        """From here on gradients are final when they are accumulated, and count so much."""
        self._is_inside = self._share is None or self._share == share
        self._share = share

    def end_backward(self) -> None:
        """What changes gradients from here on is the program."""
        self._is_inside = False

    def end(self, share: float, buffers_before: Sequence[torch.Tensor]) -> bool:
        """The pass is over: take and send what is left.

        Returns: whether `total` is right, in what was sent too. If not, the gradients are there to be packed.
        """
        for hook in self._hooks:
            hook.remove()
        gradients = [parameter.grad for _, parameter in self._flat.parameters]
        is_right = self._share in (None, share) and all(
            gradients[index] is taken[0] and self._mark(taken[0]) == taken[1:] for index, taken in self._taken.items()
        )
        self._share = share
        for index in range(len(gradients)):
            if index not in self._taken:
                self._take(index)
        if is_right:
            touched = [gradient is not None for gradient in gradients]
            self._flat.pack_tail(self.total, buffers_before, touched, self._flat.take_notes(share), share)
            self._add_up(self._flat.tail, self._flat.length, self._lefts)
        return is_right

    def _hook(self, index: int) -> Any:
        def on_accumulated(*_: Any) -> None:
            if self._is_inside and index not in self._taken:
                self._take(index)

        return on_accumulated

    def _take(self, index: int) -> None:
        assert self._share is not None
        gradient, piece = self._flat.parameters[index][1].grad, self._flat.pieces[index]
        begin, end, lefts = piece.start, piece.start + piece.numel, self._lefts
        if gradient is not None and self._share == 1.0 and lefts and self._flat.may_add(gradient):
            # Added where it is read: a copy less.
            with torch.no_grad():
                left = _sum_of(lefts[0], begin, end)
                torch.add(left.view(piece.shape), gradient, out=self.total[begin:end].view(piece.shape))
            self._add_up(begin, end, lefts[1:])
        else:
            self._flat.pack_one(self.total, index, self._share)
            self._add_up(begin, end, lefts)
        self._taken[index] = gradient, *self._mark(gradient)
        while self._sent < len(self._buckets) and self._is_complete(self._buckets[self._sent]):
            self._sent += 1
            self.ahead.let()

    def _is_complete(self, bucket: Bucket) -> bool:
        # The first parameter's gradient usually comes last, so that most answers cost one look.
        return all(index in self._taken for index in bucket.parameters)

    def _add_up(self, begin: int, end: int, lefts: Sequence[Sequence[torch.Tensor]]) -> None:
        place = self.total[begin:end]
        with torch.no_grad():
            for level in lefts:
                torch.add(_sum_of(level, begin, end), place, out=place)

    def _mark(self, gradient: torch.Tensor | None) -> tuple[int, int]:
        """What differs when it was changed: its version, and the sum of its bits where they are watched."""
        if gradient is None or not self._is_watched or gradient.layout is not torch.strided:
            return (0 if gradient is None else gradient._version), 0
        return gradient._version, _sum_of_bits(gradient.detach())


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """In words of eight bytes as far as they go: a sum of smaller ones takes many times as long."""
    size = tensor.element_size()
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    if not tensor.is_contiguous() or tensor.storage_offset() * size % 8:
        return int(tensor.view(integer).sum())
    whole = tensor.numel() * size // 8 * 8 // size
    flat = tensor.view(-1)
    return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].view(integer).sum())


def _sum_of(vectors: Sequence[torch.Tensor], begin: int, end: int) -> torch.Tensor:
    """Of a stretch of them, in order; of one vector the stretch itself."""
    total = vectors[0][begin:end]
    for vector in vectors[1:]:
        total = total + vector[begin:end]
    return total
