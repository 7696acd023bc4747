"""What a worker holds of the step that is trained now: the sum of its own microbatches, then the mean of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rubato.checkpoint.digest import digest64
from rubato.data.order import BatchPlan
from rubato.engine.buffers import is_held
from rubato.engine.flat import FlatLayout
from rubato.engine.overlap import Ahead, Overlap
from rubato.engine.reduction import Reduced, Reduction
from rubato.engine.tree import Order, Partials, most_at_once

_WATCHED = 3
"""So many first overlapped passes, and first means, are compared bit by bit with what was made of them."""


class Sums:
    """The flat vectors of one training process. All have shape (L,)."""

    def __init__(self, order: Order, flat: FlatLayout, plan: BatchPlan) -> None:
        self.flat = flat
        self.may_overlap = True
        """Until the program is seen to change gradients after a backward pass."""
        self._mean: torch.Tensor | None = None
        """Of the last reduction: gradients are views of it."""
        self._is_lent = False
        """Whether that is the result itself, which a peer may have missed."""
        self._version = 0
        """Of the mean, as it was delivered."""
        self._is_intact = True
        self._may_lend = True
        """Until the program is seen to change the gradients that it was given."""
        self._delivered = 0
        self._compared: torch.Tensor | None = None
        """The result of which the mean is a copy that is to be looked at."""
        self._order = order
        self._plan = plan
        self._partials: Partials[torch.Tensor] | None = None
        self._free: list[torch.Tensor] = []
        self._made = 0
        """Vectors that there are."""
        self._overlap: Overlap | None = None
        self._overlapped = 0
        self._ahead: Ahead | None = None
        self._was_wrong = False

    def reserve(self, owners: Sequence[int], rank: int) -> None:
        """Make the vectors that a whole step takes with these owners, before anybody waits for their memory.

        Called by another thread than all else; where both make one at once there is one more than needed.
        """
        leaves = [leaf for leaf, owner in enumerate(owners) if owner == rank]
        needed = most_at_once(self._order, leaves, range(len(owners))) + (0 if self._is_lent else 1)  # the mean
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
            self._look_back()
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
            self._made -= 1  # its vector may still be sent, and goes with the exchange
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

    @property
    def mean(self) -> torch.Tensor:
        """Of the last reduction."""
        assert self._mean is not None
        return self._mean

    @property
    def is_intact(self) -> bool:
        """Whether the last result is as it was, so that a peer that missed it can have it."""
        self._look_back()
        return self._is_intact

    def deliver(self, step: int, result: Reduced, weight: float) -> None:
        """The mean, from the sum of all workers' and the step's weight in samples; the parts are dropped.

        Where nothing is to be divided the result is lent to the program as it lies there, until that is seen to change
        its gradients (clipping them, say): the last result must stay what it is for a peer that missed it.

        Gradients that the program keeps stay as they are, as they do without Rubato: the last mean is not overwritten
        then, whether one worker trains or several.
        """
        divisor, partials = weight / self.unit(step), self._partials
        is_divided = divisor not in (0.0, 1.0)
        self._partials, self._is_intact = None, True
        whole = result.chunks[0] if len(result.chunks) == 1 else None
        if whole is not None and partials is not None and any(whole is one for one in partials.nodes.values()):
            # One worker: its sum becomes the mean where it lies, and nobody can have missed it.
            self._give_back_mean()
            self._mean = whole.div_(divisor) if is_divided else whole
            return
        if whole is not None and not is_divided and self._may_lend and self._delivered >= _WATCHED:
            self._made -= 1 if self._mean is not None and not self._is_lent else 0  # none is needed any more
            self._mean, self._is_lent, self._version = whole, True, whole._version
        else:
            self._copy(result, divisor if is_divided else 1.0)
            self._compared = whole if not is_divided and self._may_lend else None
        self._delivered += 1
        if partials is not None:
            partials.clear()

    def _copy(self, result: Reduced, divisor: float) -> None:
        if self._mean is None or self._is_lent or is_held(self._mean):
            self._give_back_mean()
            self._mean = self._vector()
        at = 0
        for chunk in result.chunks:
            place = self._mean[at : at + chunk.numel()]
            if divisor == 1.0:
                place.copy_(chunk.reshape(-1))
            else:  # touched flags too, which only have to differ from 0
                torch.div(chunk.reshape(-1), divisor, out=place)
            at += chunk.numel()

    def _give_back_mean(self) -> None:
        """Its memory is free, where it is of these vectors and nobody uses it."""
        mean, self._mean = self._mean, None
        if mean is not None and not self._is_lent:
            if is_held(mean):
                self._made -= 1
            else:
                self._free.append(mean)
        self._is_lent = False

    def _look_back(self) -> None:
        """Whether the program has changed what it was given."""
        compared, self._compared = self._compared, None
        if compared is not None:
            self._may_lend = self._may_lend and _are_same(self.mean, compared)
        if self._is_lent and self.mean._version != self._version:
            self._may_lend = self._is_intact = False

    def _vector(self) -> torch.Tensor:
        """A flat vector to fill; its content is undefined, but for zeros between its pieces."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return self.flat.empty()


def _are_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit by bit: what is not a number is the same as itself."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
