"""The reductions of one generation: over its members, or of one worker alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from rubato.engine.buckets import Bucket
from rubato.engine.buffers import Buffers
from rubato.engine.comm import Communicator
from rubato.engine.header import Header
from rubato.engine.labels import Stamp
from rubato.engine.reduction import Reduced, Reduction, bytes_of_parts, frontiers, is_finite
from rubato.engine.tree import Order, Partials


class Exchange:
    """Reductions within one generation.

    Args:
        comm: of the generation; None: one worker alone.
        like: a vector (L,); its type counts.
        gradients: so many elements of it, the first ones, must be finite; None: all.
        buckets: in the order of the exchange, the whole vector together; none: one.
    """

    overlaps = True
    """Whether a reduction may begin while gradients are computed."""

    def __init__(
        self,
        comm: Communicator | None,
        like: torch.Tensor,
        header_bytes: int,
        integer_bytes: int,
        device: torch.device,
        gradients: int | None = None,
        buckets: Sequence[Bucket] = (),
    ) -> None:
        self._comm = comm
        self._gradients = like.numel() if gradients is None else gradients
        rank, world = (comm.rank, comm.world) if comm is not None else (0, 1)
        cuts = buckets or (Bucket(0, like.numel(), range(0)),)
        self._buffers = Buffers(rank, world, like, header_bytes, integer_bytes, device, cuts)

    def touch(self, order: Order, ownerships: Iterable[Sequence[int]], former: Exchange | None = None) -> None:
        """Touch the memory of the buffers that steps with these owners need, before anybody waits for it.

        Args:    former: the generation it follows, whose results it will `take_over`.
        """
        if self._comm is None:
            return
        buffers = self._buffers
        for owners in ownerships:
            held = frontiers(order, range(len(owners)), owners, self._comm.world)
            for number, section in enumerate(buffers.sections):
                buffers.scratch("parts", number, bytes_of_parts(buffers, section, held))
        buffers.touch(results=former is None or not buffers.may_take_over(former._buffers))

    def take_over(self, former: Exchange) -> None:
        """The generation before ended as planned, here: its results' memory is this one's now, where it suffices."""
        if self._comm is not None and self._buffers.may_take_over(former._buffers):
            self._buffers.take_over(former._buffers)

    def begin(self, order: Order, present: Collection[int], owners: Sequence[int], stamp: Stamp) -> Reduction:
        """A reduction over the members, bucket by bucket.

        Args:
            present: the microbatches that exist in the step.
            owners: by microbatch, the rank that holds it in this step.
        """
        assert self._comm is not None
        results = self._buffers.results()
        return Reduction(self._comm, self._buffers, self._gradients, order, present, owners, stamp, results)

    def reduce(
        self,
        partials: Partials[torch.Tensor],
        owners: Sequence[int],
        header: Header,
        integers: bytes,
        begun: Reduction | None = None,
    ) -> Reduced:
        """A whole reduction, or what is left of one.

        Args:
            partials: this worker's nodes; their vectors are (L,).
            owners: by microbatch, the rank that holds it in this step.
            header: of this worker; `is_finite` is filled in here.
            integers: this worker's integer buffers; those of the owner of the lowest microbatch count.
            begun: what was exchanged of it already.
        Raises:
            GenerationLost: a member was lost; the partials are untouched.
            ProtocolError: a node is missing or doubled, or a member is at another step.
        """
        if self._comm is None:
            root = partials.root()
            told = replace(header, is_finite=is_finite(root[: self._gradients]))
            return Reduced((root,), (told,), integers)
        stamp = header.attempt, header.generation, header.step
        reduction = begun or self.begin(partials.order, partials.present, owners, stamp)
        result = reduction.end(partials.nodes, header, integers)
        if any(one.again for one in result.headers):
            self._buffers.skip_turn()
            return self.reduce(partials, owners, replace(header, again=False), integers)
        return result
