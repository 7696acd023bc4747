"""Who computes which microbatches. Pure: owners have no influence on the bits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rubato.engine.tree import Tree, balanced_owners

MIN_GAIN = 0.15
"""Of the time that the slowest worker computes: less is not worth uneven shares."""
SLACK = 1.05
"""How much longer than at best a step may take if that keeps the runs of microbatches aligned."""
MAX_ALIGNED = 128
"""Microbatches up to which aligned runs are looked for: the search grows with the square."""


def decide_first_owners(num_microbatches: int, paces: Sequence[float | None], former: Sequence[int]) -> tuple[int, ...]:
    """With whom a generation begins: equal shares, unless some of its members are known to be slow.

    Known is what the shares of the generation before say: `balancing` moved microbatches there, after a long look. How
    slow who is now, the paces of its last steps tell.

    Args:
        paces: by rank, the time that a microbatch takes; None: of a worker that has not computed any yet.
        former: the owners in the generation before; none: there is none.
    """
    equal = balanced_owners(num_microbatches, len(paces))
    known = [pace for pace in paces if pace]
    if not known or not former or tuple(former) == balanced_owners(len(former), max(former) + 1):
        return equal
    times = [pace or statistics.median(known) for pace in paces]
    best = shares_for(times, num_microbatches)
    gain = 1.0 - step_time(times, best) / step_time(times, shares_of(equal, len(times)))
    return owners_of(best) if gain >= MIN_GAIN else equal


def shares_for(times: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    """How many microbatches each rank gets, in contiguous runs, at least one each.

    Of all shares with which a step takes at most `SLACK` times the shortest possible, those that need the fewest tree
    nodes: what a rank sends in an exchange grows with the nodes that it holds.
    """
    shares = [1] * len(times)
    for _ in range(num_microbatches - len(times)):
        shares[min(range(len(times)), key=lambda rank: (shares[rank] + 1) * times[rank])] += 1
    if num_microbatches > MAX_ALIGNED:
        return tuple(shares)
    allowed = SLACK * step_time(times, shares)
    # Best (nodes, longest time, shares) by microbatches given away, rank after rank.
    found: dict[int, tuple[int, float, tuple[int, ...]]] = {0: (0, 0.0, ())}
    tree = Tree.of(num_microbatches)
    nodes: dict[tuple[int, int], int] = {}
    for rank, time in enumerate(times):
        after = len(times) - rank - 1
        most = int(allowed / time + 1e-9)
        following: dict[int, tuple[int, float, tuple[int, ...]]] = {}
        for begin, (sent, slowest, given) in found.items():
            for count in range(1, min(most, num_microbatches - begin - after) + 1):
                run = (begin, begin + count)
                if run not in nodes:
                    nodes[run] = len(tree.frontier(range(*run), range(num_microbatches)))
                option = (sent + nodes[run], max(slowest, count * time), (*given, count))
                following[run[1]] = min(following.get(run[1], option), option)
        found = following
    return found[num_microbatches][2] if num_microbatches in found else tuple(shares)


def owners_of(shares: Sequence[int]) -> tuple[int, ...]:
    """By microbatch, the rank that computes it: contiguous runs."""
    return tuple(rank for rank, count in enumerate(shares) for _ in range(count))


def shares_of(owners: Sequence[int], world: int) -> tuple[int, ...]:
    """How many microbatches each rank has."""
    return tuple(owners.count(rank) for rank in range(world))


def step_time(times: Sequence[float], shares: Sequence[int]) -> float:
    """How long the slowest rank computes."""
    return max(time * count for time, count in zip(times, shares, strict=True))
