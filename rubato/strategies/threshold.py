"""Only elements that have grown beyond a threshold travel, as one word each: a place and a sign.

Per step and worker:
1. r <- r + g.
2. For each element with |r| >= t the word (place, sign) is sent to all, and t with its sign taken off r. At most a
   given share of the elements is sent, the largest; the rest waits in r.
3. Everybody adds t with its sign for each word that came.

The number of words differs, so all tell each other theirs first: 8 bytes.
Source: Strom 2015, doi:10.21437/Interspeech.2015-354.
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, all_gather
from rubato.strategies.selection import largest
from rubato.strategies.sizes import count_of

_SIGN = 1 << 31


class Threshold(Piecewise):
    """Strom's threshold, with what is left over kept.

    Args:
        threshold: t, in the units of the vectors, > 0.
        most: at most this share of the elements travels in a step.
    """

    own = ("residual",)

    def __init__(self, layout: Layout, threshold: float, most: float = 0.1) -> None:
        super().__init__(layout)
        self._threshold = threshold
        self._most = count_of(most, layout.numel)

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        residual = state["residual"] + part_D
        places = torch.nonzero(residual.abs() >= self._threshold).flatten()
        if places.numel() > self._most:
            places = places[largest(residual[places].abs(), self._most)]
        words = torch.where(residual[places] < 0, places - _SIGN, places).to(torch.int32)
        residual[places] -= self._steps(words, residual)
        counts = torch.stack(all_gather(comm, torch.tensor([words.numel()], device=part_D.device))).flatten().tolist()
        total = torch.zeros_like(residual)
        for told in all_gather(comm, words, counts):
            total.index_add_(0, _places(told), self._steps(told, residual))
        return total, {"residual": residual}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> None:
        """See `Piecewise`."""

    def _steps(self, words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        signs = 1 - 2 * (words < 0).to(like.dtype)
        return signs * self._threshold


def _places(words: torch.Tensor) -> torch.Tensor:
    return words.long() & (_SIGN - 1)
