"""The reductions of a generation where the job's `aggregation` says how: in place of the engine's own.

    first     where a strategy has it so, a part that may have been on its way while gradients were computed
    tell      all tell each other which microbatches their vectors cover, what these weigh, and whether they are finite
              (`labels`)
    exchange  the strategy's messages; at its end everybody has the sum, and what is kept if the step counts
    close     headers and integer buffers, of all to all

Whoever has the headers of all knows that all have the sum and what follows from it: so it suffices to tell one that was
interrupted here that the step counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.comm import Communicator
from rubato.engine.exchange import Exchange
from rubato.engine.flat import FlatLayout
from rubato.engine.header import ALIGNMENT, Header
from rubato.engine.keeping import Keeping
from rubato.engine.labels import Other, Stamp, tell_nodes, tell_other
from rubato.engine.reduction import Reduced, Reduction, frontiers, is_finite
from rubato.engine.tree import Order, Partials
from rubato.strategies.peers import Alone

_REMARK = struct.Struct("<?7xd")
"""What a worker says of its vector before it is exchanged: whether it is finite, and what it weighs."""


class AggregatedExchange(Exchange):
    """Reductions by a strategy. Nothing of them is begun while gradients are computed.

    Args:
        comm: of the generation; None: one worker alone.
        integer_bytes: of the integer buffers.
    """

    overlaps = False

    def __init__(
        self,
        comm: Communicator | None,
        aggregation: Keeping,
        flat: FlatLayout,
        header_bytes: int,
        integer_bytes: int,
    ) -> None:
        self._comm = comm
        self._aggregation = aggregation
        self._flat = flat
        self._gradients = flat.gradients
        self._said_bytes = header_bytes + integer_bytes

    def touch(self, order: Order, ownerships: Iterable[Sequence[int]], former: Exchange | None = None) -> None:
        """See `Exchange`. There is nothing to touch."""

    def take_over(self, former: Exchange) -> None:
        """See `Exchange`. There is nothing to take over."""

    def reduce(
        self,
        partials: Partials[torch.Tensor],
        owners: Sequence[int],
        header: Header,
        integers: bytes,
        begun: Reduction | None = None,
    ) -> Reduced:
        """See `Exchange`. The order of the sum is free, so a worker holds one node, or none."""
        assert begun is None
        vector = next(iter(partials.nodes.values()), None)
        if vector is None:
            vector = self._flat.empty()
        are_finite = is_finite(vector[: self._gradients])
        aggregation, comm = self._aggregation, self._comm
        if comm is None:
            partials.root()
            aggregation.whole = aggregation.share
            alone = Alone(vector.device)
            aggregation.send_first(alone, vector, header.step, lambda: None)
            total, are_finite = aggregation.exchange(alone, vector, header.step, are_finite=are_finite)
            return Reduced((total,), (self._closed(header, are_finite),), integers)
        stamp = header.attempt, header.generation, header.step
        cpu = torch.device("cpu")
        aggregation.send_first(comm, vector, header.step, lambda: tell_other(comm, stamp, Other.FRAGMENT, cpu))
        are_finite = self._tell(comm, partials, owners, stamp, are_finite)
        total, are_finite = aggregation.exchange(comm, vector, header.step, are_finite=are_finite)
        told = self._closed(header, are_finite).pack() + integers
        said = self._said(comm, told.ljust(self._said_bytes, b"\0"))  # only one has integers to tell
        size = len(header.pack())
        owner = owners[min(partials.present)]
        return Reduced((total,), tuple(Header.unpack(one[:size]) for one in said), said[owner][size:])

    def _tell(
        self,
        comm: Communicator,
        partials: Partials[torch.Tensor],
        owners: Sequence[int],
        stamp: Stamp,
        is_finite: bool,
    ) -> bool:
        """All tell of their vectors. Returns: whether those of all are finite."""
        held = frontiers(partials.order, partials.present, owners, comm.world)
        memory = torch.zeros(ALIGNMENT, dtype=torch.uint8), torch.zeros(comm.world * ALIGNMENT, dtype=torch.uint8)
        aggregation = self._aggregation
        remark = _REMARK.pack(is_finite, aggregation.weight)
        remarks = tell_nodes(comm, partials.order, partials.present, held, stamp, partials.nodes, memory, remark)
        told = [_REMARK.unpack(one) for one in remarks]
        aggregation.whole = sum(weight for _, weight in told) / aggregation.unit
        return all(is_finite for is_finite, _ in told)

    def _closed(self, header: Header, are_finite: bool) -> Header:
        return replace(header, is_finite=are_finite, kept=self._aggregation.kept)

    def _said(self, comm: Communicator, mine: bytes) -> list[bytes]:
        """What all say, by rank."""
        assert len(mine) == self._said_bytes
        out = torch.zeros(comm.world * len(mine), dtype=torch.uint8)
        comm.all_gather(out, bytes_tensor(mine))
        return [bytes(row.numpy()) for row in out.view(comm.world, len(mine))]
