"""How much of a vector travels, and who sends it. Pure, and without torch: the planner counts with it, too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Literal

from rubato.wire.local_updates import CutFormat

Pattern = Literal["direct", "ring", "tree", "halving_doubling", "server", "native"]
"""Of a sum; see `strategies.sums`."""
INDEX_BYTES = 4
"""Of a place among the compressed elements."""
SCALE_BYTES = 4
"""Of a sample that goes over a cut as 8-bit integers."""
_BF16_BYTES = 2
CANDIDATES = 4
"""Of a sketch: times k elements are looked at exactly."""
TABLE_TIMES, TABLE_SHARE, TABLE_MOST = 16, 16, 2
"""Of a sketch: its table has 16 elements for each of k, as large ones hide each other in a column, and a sixteenth of
all, as small ones add up in it; but no more than half of all. As measured: `benchmarks.recall`."""


def count_of(density: float, numel: int) -> int:
    """k: so many of `numel` elements are sent; at least one, where there is any."""
    return min(numel, max(1, round(density * numel)))


def columns_for(count: int, numel: int, rows: int) -> int:
    """So many columns let a sketch find `count` elements that stand out among `numel`.

    At least 95 % of them, where they are at most a twentieth of all; of more it finds less, as half of all is the most.
    """
    table = min(TABLE_TIMES * count + ceil(numel / TABLE_SHARE), ceil(numel / TABLE_MOST))
    return ceil(table / rows)


def cut(numel: int, parts: int) -> list[tuple[int, int]]:
    """Where each of the parts of a vector begins and ends, as even as can be."""
    return list(pairwise(numel * part // parts for part in range(parts + 1)))


def length(numel: int, parts: int, part: int) -> int:
    """How many elements one of these parts has."""
    return numel * (part + 1) // parts - numel * part // parts


def lengths(numel: int, parts: int) -> list[int]:
    """How many elements each of these parts has."""
    return [high - low for low, high in cut(numel, parts)]


def shards(numel: int, servers: int, world: int) -> list[int]:
    """How many elements each server adds up; there are no more servers than workers."""
    return lengths(numel, min(servers, world))


def levels_of(world: int) -> list[int]:
    """Of the binomial tree, the leaves first: how far apart neighbours are."""
    return [1 << level for level in range((world - 1).bit_length())]


def sent_directly(shares: Sequence[int], rank: int) -> int:
    """What a rank sends that gives each other one its share, and then its own share to all of them."""
    return sum(shares) - shares[rank] + (len(shares) - 1) * shares[rank]


def elements_sent(pattern: Pattern, rank: int, world: int, numel: int, servers: int = 1) -> int:
    """How many elements a rank sends to others in a sum of so many; of `native` up to a few, on gloo."""
    if world == 1:
        return 0
    match pattern:
        case "direct":
            return numel + (world - 2) * length(numel, world, rank)
        case "ring" | "native":
            return 2 * numel - sum(length(numel, world, (rank + ahead) % world) for ahead in (1, 2))
        case "server":
            parts = min(servers, world)
            own = length(numel, parts, rank) if rank < parts else 0
            return numel + (world - 2) * own
        case "tree":
            below = sum(rank % (2 * m) == 0 and rank + m < world for m in levels_of(world))
            return numel * (below + (rank > 0))
        case "halving_doubling":
            power = 1 << (world.bit_length() - 1)
            folded = 2 * (world - power)
            if rank < folded and rank % 2:
                return numel
            place = rank // 2 if rank < folded else rank - folded // 2
            low, high, sent = 0, numel, numel if rank < folded else 0
            for level in range(power.bit_length() - 1):
                middle = (low + high) // 2
                sent += high - low  # one half on the way in, the other half on the way back
                low, high = (low, middle) if not place >> level & 1 else (middle, high)
            return sent


def cut_format(chosen: CutFormat, element_bytes: int, *, goes_in: bool) -> CutFormat:
    """How a tensor goes over a cut between layers, where a spec says `chosen`.

    Args:    goes_in: whether it goes into the module at the cut.
    """
    if chosen == "int8" and goes_in:
        return "int8"
    return "none" if chosen == "none" or element_bytes <= _BF16_BYTES else "bf16"


def cut_bytes(used: CutFormat, samples: float, elements: float, element_bytes: int) -> float:
    """What so many samples of so many elements each take there."""
    if used == "int8":
        return samples * (elements + SCALE_BYTES)
    return samples * elements * (element_bytes if used == "none" else _BF16_BYTES)
