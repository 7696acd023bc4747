"""The memory that reductions of one generation use, and where in it everything lies.

Fresh memory is zeroed by the kernel page by page, which costs more than the copies: buffers are kept from step to step,
and where a generation follows another as planned, it takes over the results of that. Where one is lost they go to the
grave with it: a message on its way may still be read from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rubato.engine.buckets import Bucket
from rubato.engine.header import ALIGNMENT

UNDER_WAY = 3
"""Buckets of one phase that are exchanged at once."""
SLACK, SLACK_BYTES = 32, 1 << 16
"""Results get 1/32 more than they need, and so much: a larger generation has more rows."""

_OWN_USES = 2
"""Of a tensor's memory: by the tensor, and by whoever asks."""


@dataclass(frozen=True)
class Section:
    """Where a bucket's chunks lie in the vector."""

    begin: int
    end: int
    chunk: int
    """Elements; late chunks may be short or empty."""

    def bounds(self, rank: int) -> tuple[int, int]:
        """First and last (exclusive) element of a rank's chunk, in the vector."""
        return min(self.begin + rank * self.chunk, self.end), min(self.begin + (rank + 1) * self.chunk, self.end)

    def elements(self, rank: int) -> int:
        """Of a rank's chunk."""
        low, high = self.bounds(rank)
        return high - low


class Buffers:
    """Of one generation, and of those that follow it as planned.

    The results begin with the reduced vector, as it is; behind it lie the rows of the last section, one a rank: its
    chunk, and what is said with it.

    Args:
        like: a vector (L,); its type counts.
        header_bytes, integer_bytes: what each of these rows holds besides.
        buckets: in the order of the exchange, the whole vector together.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        like: torch.Tensor,
        header_bytes: int,
        integer_bytes: int,
        device: torch.device,
        buckets: Sequence[Bucket],
    ) -> None:
        self.rank = rank
        self.world = world
        self.header_bytes = header_bytes
        self.integer_bytes = integer_bytes
        self.element_bytes = like.element_size()
        self.length = like.numel()
        self._dtype = like.dtype
        self._device = device
        self.sections = [Section(one.begin, one.end, -(-(one.end - one.begin) // (world * 16)) * 16) for one in buckets]
        self.said_at = aligned(self.sections[-1].chunk * self.element_bytes)
        """Where in a row begins what is said."""
        self._row_bytes = self.said_at + header_bytes + aligned(integer_bytes)
        self._rows_at = aligned(self.length * self.element_bytes)
        self._results_bytes = self._rows_at + world * self._row_bytes
        self._kept: dict[tuple[str, int], torch.Tensor] = {}
        self._results: list[torch.Tensor] = []
        self._turn = 1

    def results(self) -> torch.Tensor:
        """One of two buffers in turn: the last result stays readable for a peer that missed it.

        One that somebody else still uses (a program that keeps its gradients) is left to him.
        """
        self.skip_turn()
        if len(self._results) < 2:
            self._results.append(self._new_results())
        elif is_held(self._results[self._turn]):
            self._results[self._turn] = self._new_results()
        return self._results[self._turn][: self._results_bytes]

    def skip_turn(self) -> None:
        """The result of this turn is not the last one: it is made again."""
        self._turn = 1 - self._turn

    def _new_results(self) -> torch.Tensor:
        size = self._results_bytes + self._results_bytes // SLACK + SLACK_BYTES
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def may_take_over(self, former: Buffers) -> bool:
        """Whether the results of another generation are large enough for this one's."""
        return len(former._results) == 2 and all(one.numel() >= self._results_bytes for one in former._results)

    def take_over(self, former: Buffers) -> None:
        """Use the results of a generation all of whose messages are over; its last one is overwritten last."""
        self._results, self._turn = [former._results[1 - former._turn], former._results[former._turn]], 1
        former._results = []

    def place(self, section: Section, rank: int) -> tuple[int, int]:
        """First and last (exclusive) byte of what a rank tells of a section, in the results."""
        if section is self.sections[-1]:
            begin = self._rows_at + rank * self._row_bytes
            return begin, begin + self._row_bytes
        low, high = section.bounds(rank)
        return low * self.element_bytes, high * self.element_bytes

    def scratch(self, name: str, number: int, size: int) -> torch.Tensor:
        """The first `size` bytes of a buffer that is kept.

        Args:    number: of the bucket: so many as are under way at once have buffers of their own.
        """
        key = name, number % UNDER_WAY
        kept = self._kept.get(key)
        if kept is None or kept.numel() < size:
            kept = self._kept[key] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return kept[:size]

    def typed(self, buffer: torch.Tensor, offset: int, numel: int) -> torch.Tensor:
        """So many elements of the vector's type, from a byte on."""
        return buffer[offset : offset + numel * self.element_bytes].view(self._dtype)

    def touch(self, *, results: bool) -> None:
        """Touch all memory there is, before anybody waits for it.

        Args:    results: also that of the results, which are made for it.
        """
        for buffer in (*self._kept.values(), *((self.results(), self.results()) if results else ())):
            buffer.zero_()


def is_held(tensor: torch.Tensor) -> bool:
    """Whether anything else uses the memory of a tensor that has one owner: a gradient that somebody keeps, say."""
    storage = tensor.untyped_storage()
    return bool(torch._C._storage_Use_Count(storage._cdata) > _OWN_USES)


def aligned(size: int) -> int:
    """Padded to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT
