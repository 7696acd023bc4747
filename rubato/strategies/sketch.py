"""A sketch of each worker's vector, whose sum is the sketch of the sum.

A count sketch S has r rows of c columns. Row j adds each element i, with a sign s_j(i), into column h_j(i); the median
over the rows of s_j(i) S[j, h_j(i)] is near to element i where that is large. Nobody says which elements these are:
everybody finds the same ones in the summed sketch.

Per step and worker, D elements, k = density * D:
1. u <- m u + g and v <- v + u with momentum correction; v <- v + g without.
2. S = sketch(v), summed over the workers. J: the 4k elements with the largest estimates.
3. x: the sum over the workers of v at J, exactly. The k largest of x are applied, and cleared in v (and u).
The exact second look is what makes a small sketch do. With the columns of `columns_for` it recalls 95 % of k elements
that stand out, in a table of 16 k + D/16 elements; at half of D, the most, that ends with a density of 0.05. Where none
stands out, as in most gradients, it finds fewer of the largest, and the others are kept for later steps.

Over the tree this is gs-SGD: two sums, of r c and 4k elements. With a server it is Sketched-SGD: rank 0 adds up, tells
J, adds up v at J, and tells the k places and values.
Source: Rothchild et al. 2019, arXiv:1903.04488 (server); gs-SGD 2021, arXiv:2108.06004 (sum); Charikar et al. 2002,
doi:10.1007/3-540-45465-9_59 (the sketch).
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Correcting, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, exchange, tell_of_first
from rubato.strategies.selection import INDEX, largest
from rubato.strategies.sizes import CANDIDATES, Pattern, columns_for, count_of, elements_sent
from rubato.strategies.sums import sum_over

_PRIME = 2**31 - 1
"""Products of two residues fit into 62 bits."""
_BLOCK = 1 << 20
"""Elements hashed at once: tables of all would take 25 bytes an element at five rows."""


class CountSketch:
    """Tables of r rows and c columns for D elements, the same for everybody who names the same seed."""

    def __init__(self, numel: int, rows: int, columns: int, seed: int) -> None:
        self.rows, self.columns, self._numel = rows, columns, numel
        generator = torch.Generator().manual_seed(seed)
        # By row: two coefficients for the column (pairwise independent), four for the sign (4-wise).
        self._coefficients = torch.randint(1, _PRIME, (rows, 6), generator=generator, dtype=torch.int64)

    def of(self, vector_D: torch.Tensor) -> torch.Tensor:
        """The sketch (r, c) of a vector."""
        table = vector_D.new_zeros(self.rows, self.columns)
        for start in range(0, self._numel, _BLOCK):
            block = vector_D[start : start + _BLOCK]
            for row in range(self.rows):
                columns, signs = self._hash(row, start, block)
                table[row].index_add_(0, columns, signs * block)
        return table

    def estimate(self, table: torch.Tensor) -> torch.Tensor:
        """What each element was, about: the medians (D,)."""
        estimates = table.new_empty(self._numel)
        for start in range(0, self._numel, _BLOCK):
            place = estimates[start : start + _BLOCK]
            looks = []
            for row in range(self.rows):
                columns, signs = self._hash(row, start, place)
                looks.append(signs * table[row][columns])
            place.copy_(torch.stack(looks).median(0).values)
        return estimates

    def _hash(self, row: int, start: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b, *sign = self._coefficients[row].tolist()
        i = torch.arange(start + 1, start + 1 + like.numel(), dtype=torch.int64, device=like.device)
        columns = (i * a + b) % _PRIME % self.columns
        mixed = torch.full_like(i, sign[0])
        for coefficient in sign[1:]:
            mixed = (mixed * i + coefficient) % _PRIME
        return columns, (1 - 2 * (mixed & 1)).to(like.dtype)


class Sketch(Correcting):
    """gs-SGD, or Sketched-SGD.

    Args:
        density: the share of all compressed elements that is applied in a step.
        rows: r.
        columns: c; None: `columns_for` so many elements.
        momentum: m of the momentum correction; 0: none.
        is_central: rank 0 adds up and chooses, as a server would.
        pattern: of the sums, where there is no server.
    """

    def __init__(
        self,
        layout: Layout,
        density: float,
        *,
        rows: int = 5,
        columns: int | None = None,
        momentum: float = 0.0,
        seed: int = 0,
        is_central: bool = False,
        pattern: Pattern = "tree",
    ) -> None:
        super().__init__(layout, momentum)
        self._is_central, self._pattern = is_central, pattern
        self._count = count_of(density, layout.numel)
        self._candidates = min(CANDIDATES * self._count, layout.numel)
        width = columns or columns_for(self._count, layout.numel, rows)
        self.sketch = CountSketch(layout.numel, rows, width, seed)

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        after = self.gather(part_D, state)
        residual = after["residual"]
        candidates = self._find(comm, self.sketch.of(residual))
        places, values = self._look(comm, candidates, residual[candidates])
        self.clear(after, places)
        total = torch.zeros_like(residual)
        total[places] = values
        return total, after

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        table = self.sketch.rows * self.sketch.columns
        if not self._is_central:
            sums = (elements_sent(self._pattern, rank, world, count) for count in (table, self._candidates))
            return element_bytes * sum(sums)
        if rank:
            return element_bytes * (table + self._candidates)
        told = INDEX.itemsize * (self._candidates + self._count) + element_bytes * self._count
        return (world - 1) * told

    def _find(self, comm: Collectives, table: torch.Tensor) -> torch.Tensor:
        """J, the same on all ranks."""
        if not self._is_central:
            total = sum_over(comm, table.flatten(), self._pattern).view_as(table)
            return largest(self.sketch.estimate(total).abs(), self._candidates)
        summed = _sum_at_first(comm, table.flatten())
        found = table.new_empty(0, dtype=INDEX)
        if comm.rank == 0:
            found = largest(self.sketch.estimate(summed.view_as(table)).abs(), self._candidates).to(INDEX)
        return tell_of_first(comm, found, self._candidates).long()

    def _look(
        self, comm: Collectives, candidates: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the candidates the k that are largest by their exact sums, and these."""
        if not self._is_central:
            exact = sum_over(comm, values, self._pattern)
            chosen = largest(exact.abs(), self._count)
            return candidates[chosen], exact[chosen]
        exact = _sum_at_first(comm, values)
        chosen = largest(exact.abs(), self._count)
        places = tell_of_first(comm, candidates[chosen].to(INDEX), self._count).long()
        return places, tell_of_first(comm, exact[chosen], self._count)


def _sum_at_first(comm: Collectives, vector: torch.Tensor) -> torch.Tensor:
    """At rank 0 the sum of all, in the order of ranks; elsewhere one's own."""
    others = range(1, comm.world)
    sent = {0: vector} if comm.rank else {}
    came = exchange(comm, sent, {} if comm.rank else dict.fromkeys(others, vector.numel()), vector.dtype)
    return sum(came.values(), vector)
