"""A matrix of low rank in place of each gradient matrix.

Per step and worker, for each matrix M (rows, columns) of rank r at most:
1. M = g + e. P = M Q, with the Q of the step before, made small: P keeps its directions, and does not overflow where
   gradients were huge for once. P is summed over the workers.
2. P is made orthonormal, by all alike.
3. Q' = M^T P, of each; e <- M - P Q'^T. Q' is summed over the workers: Q.
4. P Q^T is taken for the sum of all M.

As e is what a worker's own P Q'^T leaves, the sum of all e and of what is applied is the sum of all M: nothing is lost.
Sent by each: 2(P-1)/P of e r (rows + columns) bytes a matrix, e bytes of an element, in two sums of all matrices.
Source: Vogels et al. 2019, arXiv:1905.13727.
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, join, split
from rubato.strategies.sizes import elements_sent
from rubato.strategies.sums import sum_over

_MOST = 100
"""Powers of two that float32 has, and room for the product."""


class PowerSGD(Piecewise):
    """PowerSGD with error feedback and a warm start.

    Args:
        rank: r; a matrix of which one side is smaller has that side's.
        seed: of the first Q, which is the same for all.
    """

    own = ("residual",)

    def __init__(self, layout: Layout, rank: int, seed: int = 0) -> None:
        super().__init__(layout)
        self._seed = seed
        sides = [(piece.rows, piece.numel // piece.rows) for piece in layout.pieces]
        self._sides = [(rows, columns, min(rank, rows, columns)) for rows, columns in sides]

    def start(self, like: torch.Tensor) -> State:
        """See `Compressor`."""
        generator = torch.Generator().manual_seed(self._seed)
        count = sum(columns * rank for _, columns, rank in self._sides)
        first = torch.randn(count, generator=generator, dtype=torch.float64)
        return {**super().start(like), "q": first.to(like)}

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        residual = part_D.add_(state["residual"])
        matrices = [
            part.view(rows, columns)
            for (rows, columns, _), part in zip(
                self._sides, split(residual, [rows * columns for rows, columns, _ in self._sides]), strict=True
            )
        ]
        qs = [_made_small(q) for q in self._split(state["q"], side=1)]
        ps = self._split(
            sum_over(comm, join([(m @ q).flatten() for m, q in zip(matrices, qs, strict=True)], part_D)), side=0
        )
        ps = [torch.linalg.qr(p).Q for p in ps]
        own_qs = [m.T @ p for m, p in zip(matrices, ps, strict=True)]
        summed_q = sum_over(comm, join([q.flatten() for q in own_qs], part_D))
        total = torch.empty_like(residual)
        at = 0
        for m, p, own, q in zip(matrices, ps, own_qs, self._split(summed_q, side=1), strict=True):
            total[at : at + m.numel()] = (p @ q.T).flatten()
            m.sub_(p @ own.T)
            at += m.numel()
        return total, {"residual": residual, "q": summed_q}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        counts = [sum(side[which] * side[2] for side in self._sides) for which in (0, 1)]
        return element_bytes * sum(elements_sent("direct", rank, world, count) for count in counts)

    def _split(self, flat: torch.Tensor, side: int) -> list[torch.Tensor]:
        """The matrices (side, r) of all pieces."""
        parts = split(flat, [one[side] * one[2] for one in self._sides])
        return [part.view(one[side], one[2]) for one, part in zip(self._sides, parts, strict=True)]


def _made_small(matrix: torch.Tensor) -> torch.Tensor:
    """By a power of two, so that its largest element is about 1."""
    _, exponent = torch.frexp(matrix.abs().max())
    return torch.ldexp(matrix, -exponent.clamp(-_MOST, _MOST))
