"""What a worker holds of the step that is trained now: the sum of its own microbatches, then the mean of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rubato.checkpoint.digest import digest64
from rubato.data.order import BatchPlan
from rubato.engine.flat import FlatLayout
from rubato.engine.overlap import Ahead, Overlap
from rubato.engine.reduction import Reduced, Reduction
from rubato.engine.tree import Order, Partials, most_at_once

_WATCHED = 3
"""So many first overlapped passes are compared bit by bit."""
_OWN_USES = 2
"""Of a tensor's memory: by the tensor, and by whoever asks."""


class Sums:
    """The flat vectors of one training process. All have shape (L,)."""

    def __init__(self, order: Order, flat: FlatLayout, plan: BatchPlan) -> None:
        self.flat = flat
        self.mean = flat.empty()
        """Of the last reduction: gradients are views of it."""
        self.may_overlap = True
        """Until the program is seen to change gradients after a backward pass."""
        self._order = order
        self._plan = plan
        self._partials: Partials[torch.Tensor] | None = None
        self._free: list[torch.Tensor] = []
        self._made = 0
        """Vectors that there are, besides the first mean."""
        self._overlap: Overlap | None = None
        self._overlapped = 0
        self._ahead: Ahead | None = None
        self._was_wrong = False

    def reserve(self, owners: Sequence[int], rank: int) -> None:
        """Make the vectors that a whole step takes with these owners, before anybody waits for their memory.

        Called by another thread than all else; where both make one at once there is one more than needed.
        """
        leaves = [leaf for leaf, owner in enumerate(owners) if owner == rank]
        needed = most_at_once(self._order, leaves, range(len(owners)))
        while self._made < needed:
            vector = self.flat.empty()
            if vector.is_cuda:
                torch.cuda.current_stream(vector.device).synchronize()  # the main thread may use another stream
            self._made += 1
            self._free.append(vector)

    @property
    def held(self) -> frozenset[int] | None:
        """Microbatches of the present step that are in the sum; None before the first look at it."""
        return frozenset(self._partials.held) if self._partials is not None else None

    def of(self, step: int) -> Partials[torch.Tensor]:
        """The parts of this step's sum."""
        if self._partials is None:
            present = [leaf for leaf, size in enumerate(self._plan.sizes(step)) if size]
            self._partials = Partials(self._order, present, lambda left, right: left.add_(right), self._free.append)
        return self._partials

    def unit(self, step: int) -> int:
        """So many samples have weight 1: a full microbatch; where the order is free, the step, to save work."""
        return self._plan.batch_size(step) if self._order.takes_several else self._plan.nominal

    def overlap(self, step: int, leaves: range, reduction: Reduction) -> None:
        """The pass that begins is the step's last one here: exchange its gradients while it computes them."""
        partials, total = self.of(step), self._vector()
        node, lefts, others = partials.joins(self._order.node_of(leaves))
        self._ahead = Ahead(reduction, {**others, node: total})
        self._overlapped += 1
        is_watched = self._overlapped <= _WATCHED
        self._overlap = Overlap(self.flat, lefts, total, self._ahead, is_watched=is_watched)

    def relay(self, reduction: Reduction) -> None:
        """This worker has no part of the step: exchange what the others send as it comes, beside all else."""
        self._ahead = Ahead(reduction, {})
        for _ in self.flat.buckets[:-1]:
            self._ahead.let()

    @property
    def is_begun(self) -> bool:
        """Whether the exchange of this step is."""
        return self._ahead is not None

    def begin_backward(self, step: int, weight: float) -> None:
        """A backward pass over a microbatch of this weight, in samples, begins."""
        if self._overlap is not None:
            self._overlap.begin_backward(weight / self.unit(step))

    def end_backward(self) -> None:
        """It is over."""
        if self._overlap is not None:
            self._overlap.end_backward()

    def take(
        self,
        step: int,
        leaves: range,
        weight: float,
        buffers_before: Sequence[torch.Tensor],
        look: Callable[[torch.Tensor], None] | None = None,
    ) -> bool:
        """Take the gradients of a pass into the sum, and drop them. Returns whether there were any.

        Args:    look: called with the pass's vector before it is added to others; not where it was added already.
        """
        share, node = weight / self.unit(step), self._order.node_of(leaves)
        has_gradient = any(parameter.grad is not None for _, parameter in self.flat.parameters)
        overlap, self._overlap = self._overlap, None
        if overlap is not None:
            if overlap.end(share, buffers_before):
                for _, parameter in self.flat.parameters:
                    parameter.grad = None
                self.of(step).put_joined(node, overlap.total)
                return has_gradient
            self._was_wrong, self.may_overlap = True, False
        partials = self.of(step)
        left = partials.left_of(node) if share == 1.0 else None
        vector = self._vector() if left is None else left
        self.flat.pack(vector, buffers_before, share, adds=left is not None)
        if left is None:
            if look is not None:
                look(vector)
            partials.put(node, vector)
        else:
            partials.put_added(node)
        return has_gradient

    def digest_of_pass(self, step: int, weight: float, buffers_before: Sequence[torch.Tensor]) -> int:
        """A digest of what a pass would add to the sum; gradients are dropped, and not counted."""
        vector = self._vector()
        self.flat.pack(vector, buffers_before, weight / self.unit(step))
        self._free.append(vector)
        return digest64([vector])

    def take_begun(self) -> tuple[Reduction | None, bool]:
        """What was exchanged of this step's reduction already, and whether it was wrong.

        Raises:  GenerationLost, ProtocolError: as `Exchange.reduce`.
        """
        ahead, self._ahead = self._ahead, None
        was_wrong, self._was_wrong = self._was_wrong, False
        return (None if ahead is None else ahead.join()), was_wrong

    def abandon(self) -> None:
        """The generation is lost: nobody uses its group any more when this returns."""
        ahead, self._ahead, self._was_wrong = self._ahead, None, False
        if ahead is not None:
            ahead.wait()

    def deliver(self, step: int, result: Reduced, weight: float) -> None:
        """The mean, from the sum of all workers' and the step's weight in samples; the parts are dropped.

        Gradients that the program keeps stay as they are, as they do without Rubato: the last mean is not overwritten
        then, whether one worker trains or several.
        """
        divisor, partials = weight / self.unit(step), self._partials
        self._partials = None
        if partials is not None and [id(chunk) for chunk in result.chunks] == list(map(id, partials.nodes.values())):
            # One worker: its sum becomes the mean where it lies.
            if _is_held(self.mean):
                self._made -= 1
            else:
                self._free.append(self.mean)
            (self.mean,) = result.chunks
            if divisor not in (0.0, 1.0):
                self.mean.div_(divisor)
            return
        if _is_held(self.mean):
            self._made -= 1
            self.mean = self._vector()
        at = 0
        for chunk in result.chunks:
            place = self.mean[at : at + chunk.numel()]
            if divisor in (0.0, 1.0):
                place.copy_(chunk.reshape(-1))
            else:  # touched flags too, which only have to differ from 0
                torch.div(chunk.reshape(-1), divisor, out=place)
            at += chunk.numel()
        if partials is not None:
            partials.clear()

    def _vector(self) -> torch.Tensor:
        """A flat vector to fill; its content is undefined, but for zeros between its pieces."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return self.flat.empty()


def _is_held(vector: torch.Tensor) -> bool:
    """Whether anything else uses the memory of a tensor: a gradient that somebody keeps, or a view of it."""
    storage = vector.untyped_storage()
    return bool(torch._C._storage_Use_Count(storage._cdata) > _OWN_USES)
