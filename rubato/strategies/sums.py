"""The sum of equal vectors of all workers, in five patterns, or by the backend itself.

Names: P workers, n bytes of a vector, a = seconds until a message begins to arrive, b = seconds a byte. The time of a
pattern is that of the rank that is busy for longest; adding up is left out.

| pattern | messages in a row | bytes out, busiest rank |
|---|---|---|
| direct | 2 | 2n(P-1)/P |
| ring | 2(P-1) | 2n(P-1)/P |
| tree | 2 ceil(log2 P) | n ceil(log2 P) |
| halving and doubling | 2 log2 P, and 2 more where P is no power of two | 2n(P-1)/P, and n more there |
| server, S of them | 2 | n(P-1)/S in, and as much out |
| native: gloo's own, a ring | 2(P-1) | 2n(P-1)/P |

The result has equal bits on all ranks, and the same bits each time. Over `tree` and `halving_doubling` it is a balanced
binary tree over the ranks, the same for both where P is a power of two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rubato.strategies.peers import Collectives, all_gather, exchange, others_of, scatter, split
from rubato.strategies.sizes import Pattern, lengths, levels_of, shards

LARGE = 1 << 16
"""Bytes of a message beyond which its way takes longer than a word back, on a link that is slow enough to matter."""


def sum_over(comm: Collectives, vector: torch.Tensor, pattern: Pattern = "direct", servers: int = 1) -> torch.Tensor:
    """The sum of the ranks' vectors, a new tensor.

    Args:    servers: of `server`: so many of the first ranks add up a part each.
    Shapes:  (n,), equal on all ranks.
    Raises:  GenerationLost: a peer died.
    """
    if comm.world == 1:
        return vector.clone()
    if pattern == "server":
        return _by_servers(comm, vector, servers)
    return PATTERNS[pattern](comm, vector.clone())


def reduce_scatter(comm: Collectives, vector: torch.Tensor) -> torch.Tensor:
    """Rank r gets stretch r of all, and adds up in the order of ranks."""
    parts = scatter(comm, split(vector, lengths(vector.numel(), comm.world)))
    return sum(parts[1:], parts[0])


def sum_directly(comm: Collectives, vector: torch.Tensor) -> torch.Tensor:
    """Phase 1: a reduce-scatter. Phase 2: each tells all its stretch."""
    return torch.cat(all_gather(comm, reduce_scatter(comm, vector), lengths(vector.numel(), comm.world)))


def _by_servers(comm: Collectives, vector: torch.Tensor, servers: int) -> torch.Tensor:
    """Phase 1: each tells each server its part, which adds up in the order of ranks. Phase 2: each server tells all.

    A synchronous parameter server whose workers are told sums instead of weights, which they step by themselves.
    Source: Li et al. 2014, Scaling distributed machine learning with the parameter server, OSDI.
    """
    parts = split(vector, shards(vector.numel(), servers, comm.world))
    told = {server: part for server, part in enumerate(parts) if server != comm.rank}
    others = others_of(comm)
    is_server = comm.rank < len(parts)
    expected = dict.fromkeys(others, parts[comm.rank].numel()) if is_server else {}
    came = exchange(comm, told, expected, vector.dtype)
    mine: dict[int, torch.Tensor] = {}
    if is_server:
        came[comm.rank] = parts[comm.rank]
        ordered = [came[rank] for rank in range(comm.world)]
        mine = {comm.rank: sum(ordered[1:], ordered[0])}
    sent = dict.fromkeys(others, mine[comm.rank]) if is_server else {}
    heard = {server: part.numel() for server, part in enumerate(parts) if server != comm.rank}
    sums = exchange(comm, sent, heard, vector.dtype) | mine
    return torch.cat([sums[server] for server in range(len(parts))])


def _ring(comm: Collectives, total: torch.Tensor) -> torch.Tensor:
    """Phase 1, P-1 rounds: to the right goes the stretch that has just come from the left, with one's own added.

    Phase 2, P-1 rounds: the finished stretches go round likewise.
    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
    """
    world, rank = comm.world, comm.rank
    stretches = split(total, lengths(total.numel(), world))
    right, left = (rank + 1) % world, (rank - 1) % world

    def turn(give: int, take: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The stretch that came, and its place."""
        place = stretches[take % world]
        return exchange(comm, {right: stretches[give % world]}, {left: place.numel()}, total.dtype)[left], place

    for round_ in range(world - 1):
        came, place = turn(rank - round_, rank - round_ - 1)
        place.add_(came)
    for round_ in range(world - 1):
        came, place = turn(rank + 1 - round_, rank - round_)
        place.copy_(came)
    return total


def _tree(comm: Collectives, total: torch.Tensor) -> torch.Tensor:
    """Binomial. Phase 1, level by level: of two neighbours m apart the upper one sends its sum to the lower one.

    Phase 2: the root's sum goes down the same tree. Who has two below passes a large one to the upper one first, which
    says when it is there: two on their way at once would each have half of the port, and the tree below would wait.
    Source: Iandola et al. 2016, FireCaffe, arXiv:1511.00175.
    """
    levels = levels_of(comm.world)
    for m in levels:
        up, down = pair(comm, m)
        came = exchange(comm, _to(up, total), _of(down, total), total.dtype)
        if down is not None:
            total.add_(came[down])
    for m in reversed(levels):
        up, down = pair(comm, m)
        came = exchange(comm, _to(down, total), _of(up, total), total.dtype)
        if up is not None:
            total.copy_(came[up])
        if m > 1 and total.numel() * total.element_size() >= LARGE:
            said = torch.zeros(1, dtype=torch.uint8, device=total.device)
            exchange(comm, _to(up, said), _of(down, said), said.dtype)
    return total


def pair(comm: Collectives, m: int) -> tuple[int | None, int | None]:
    """At the level of neighbours m apart: the one above in the tree, and the one below; most ranks have neither."""
    if comm.rank % m:
        return None, None
    if comm.rank & m:
        return comm.rank - m, None
    return None, comm.rank + m if comm.rank + m < comm.world else None


def _halving_doubling(comm: Collectives, total: torch.Tensor) -> torch.Tensor:
    """Phase 0: beyond the largest power of two, the odd ones of the first pairs add theirs to the even ones'.

    Phase 1, halving: with a partner 1, 2, 4 ... apart one keeps a half of what one has, and gives the other half away.
    Phase 2, doubling: the same backwards. Phase 3: the odd ones of phase 0 are told.
    Near partners first: so the sum is the balanced tree, whatever the number of workers.
    Source: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521.
    """
    power = 1 << (comm.world.bit_length() - 1)
    folded = 2 * (comm.world - power)  # so many ranks fold in pairs
    is_odd = comm.rank < folded and comm.rank % 2 == 1
    is_even = comm.rank < folded and comm.rank % 2 == 0
    twin = comm.rank ^ 1
    came = exchange(comm, _to(twin if is_odd else None, total), _of(twin if is_even else None, total), total.dtype)
    if is_even:
        total.add_(came[twin])
    place = comm.rank // 2 if comm.rank < folded else comm.rank - folded // 2
    steps: list[tuple[int, slice, slice]] = []
    low, high, m = 0, total.numel(), 1
    while m < power:
        middle = (low + high) // 2
        halves = slice(low, middle), slice(middle, high)
        keep, give = halves if not place & m else halves[::-1]
        if not is_odd:
            partner = _rank_of(place ^ m, folded)
            came = exchange(comm, {partner: total[give]}, {partner: keep.stop - keep.start}, total.dtype)
            # The lower place's sum stands left, as in the tree.
            total[keep] = total[keep] + came[partner] if not place & m else came[partner] + total[keep]
            steps.append((partner, keep, give))
        low, high, m = keep.start, keep.stop, m << 1
    for partner, keep, give in reversed(steps):
        came = exchange(comm, {partner: total[keep]}, {partner: give.stop - give.start}, total.dtype)
        total[give] = came[partner]
    came = exchange(comm, _to(twin if is_even else None, total), _of(twin if is_odd else None, total), total.dtype)
    if is_odd:
        total.copy_(came[twin])
    return total


def _natively(comm: Collectives, total: torch.Tensor) -> torch.Tensor:
    """As gloo or NCCL has it. Where it is given up the backend may still write to the vector, which is dropped then."""
    comm.all_reduce(total)
    return total


def _rank_of(place: int, folded: int) -> int:
    """The rank that has a place in the power of two."""
    return 2 * place if 2 * place < folded else place + folded // 2


def _to(peer: int | None, vector: torch.Tensor) -> dict[int, torch.Tensor]:
    return {} if peer is None else {peer: vector}


def _of(peer: int | None, vector: torch.Tensor) -> dict[int, int]:
    return {} if peer is None else {peer: vector.numel()}


PATTERNS: dict[Pattern, Callable[[Collectives, torch.Tensor], torch.Tensor]] = {
    "direct": sum_directly,
    "ring": _ring,
    "tree": _tree,
    "halving_doubling": _halving_doubling,
    "native": _natively,
}
