"""How much of a vector travels. Pure, and without torch: the planner counts with it, too."""

from __future__ import annotations

INDEX_BYTES = 4
"""Of a place among the compressed elements."""
CANDIDATES = 4
"""Of a sketch: times k elements are looked at exactly."""


def count_of(density: float, numel: int) -> int:
    """k: so many of `numel` elements are sent; at least one, where there is any."""
    return min(numel, max(1, round(density * numel)))


def columns_for(count: int, rows: int) -> int:
    """So many columns give a sketch as many elements as its second look has."""
    return -(-CANDIDATES * count // rows)
