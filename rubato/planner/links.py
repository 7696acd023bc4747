"""What an exchange takes on a link. Pure.

Names: P workers, n bytes of the vector, a = seconds until a word arrives, B = bytes a second of a worker's port, each
way; adding up takes g seconds a byte. A message begins to arrive after 2a: its receiver says first that it is ready, as
gloo has it; after a where it has said so long before.

| exchange | messages in a row | bytes through the busiest port | bytes added up |
|---|---|---|---|
| direct, of F vectors of the one that has most | 2 | (F+1)n(P-1)/P | Fn(P-1)/P |
| ring; native, which is gloo's own ring | 2(P-1) | 2n(P-1)/P | n(P-1)/P |
| tree | 2 ceil(log2 P) | 2n ceil(log2 P) in a row | n ceil(log2 P) |
| halving_doubling | 2 log2 P | 2n(P-1)/P | n(P-1)/P |
| server, S of the workers are one | 2 | 2n(P-1)/S | n(P-1)/S |
| to_first of n bytes each, or from_first | 1 | n(P-1) | of what came in |
| all_gather of n bytes each | 1 | n(P-1) | 0 |

Where the order of the sum is fixed, a worker whose microbatches are no whole part of the tree has several vectors.

Source: Patarasuk and Yuan 2009 (ring); Thakur et al. 2005 (halving and doubling); Iandola et al. 2016 (tree against a
server); Zou et al. 2017 (servers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from statistics import median
from typing import Literal

from rubato.errors import check_rules
from rubato.strategies.sizes import Pattern, elements_sent
from rubato.wire.spec import MAX_WORKERS

WORDS = 2
"""One after the other, of each message whose receiver says now that it is ready."""
MAX_S = 1e6
MIN_BYTES_PER_S, MAX_BYTES_PER_S = 1.0, 1e18
Exchange = Literal[Pattern, "all_gather", "to_first", "from_first"]


@dataclass(frozen=True)
class Moved:
    """What an exchange of a vector took."""

    port_bytes: float
    """Through the busiest port, one after the other."""
    seconds: float
    """Beyond its start."""


@dataclass(frozen=True)
class Link:
    """Between any two workers. What was not measured has the value of the model."""

    latency_s: float
    """a."""
    bytes_per_s: float
    """B."""
    add_s_per_byte: float = 0.0
    """g."""
    start_s: dict[str, float] = field(default_factory=dict)
    """By exchange, what was measured for a message of next to nothing, at `measured_workers`."""
    moved: dict[str, tuple[Moved, ...]] = field(default_factory=dict)
    """By exchange, vectors of some sizes, the smallest first. What lies between two takes what lies between theirs, and
    more than the largest as much more as that took than the one before it, or as the port needs for it."""
    measured_workers: int = 0
    """How many took part in these measurements; 0: there are none."""

    def __post_init__(self) -> None:
        check_rules(
            (0 <= self.latency_s <= MAX_S, "latency_s", f"must lie in 0..{MAX_S:g}, got {self.latency_s}"),
            (
                MIN_BYTES_PER_S <= self.bytes_per_s <= MAX_BYTES_PER_S,
                "bytes_per_s",
                f"must lie in {MIN_BYTES_PER_S:g}..{MAX_BYTES_PER_S:g}, got {self.bytes_per_s}",
            ),
            (0 <= self.add_s_per_byte <= MAX_S, "add_s_per_byte", f"must lie in 0..{MAX_S:g}"),
            (all(0 <= one <= MAX_S for one in self.start_s.values()), "start_s", f"must lie in 0..{MAX_S:g}"),
            (all(map(_is_rising, self.moved.values())), "moved", "must have more bytes, and longer, one by one"),
            (0 <= self.measured_workers <= MAX_WORKERS, "measured_workers", f"must lie in 0..{MAX_WORKERS}"),
        )

    @cached_property
    def usual_share(self) -> float:
        """The part of B that is reached by what was not measured: the median of what was, with the largest vector."""
        largest = [measured[-1] for measured in self.moved.values()]
        return (
            median(min(1.0, one.port_bytes / (one.seconds * self.bytes_per_s)) for one in largest) if largest else 1.0
        )

    def moved_s(self, size: float, exchange: Exchange | None = None) -> float:
        """Seconds that so many bytes take through a port, in an exchange; None: in messages of another kind."""
        measured = self.moved.get(exchange, ()) if exchange is not None else ()
        if not measured:
            return size / (self.bytes_per_s * self.usual_share)
        ends = next((pair for pair in pairwise((_NONE, *measured)) if size <= pair[1].port_bytes), None)
        low, high = ends or (_NONE, *measured)[-2:]
        slope = (high.seconds - low.seconds) / (high.port_bytes - low.port_bytes)
        if ends is None:
            return high.seconds + (size - high.port_bytes) * max(slope, 1 / self.bytes_per_s)
        return low.seconds + (size - low.port_bytes) * slope


_NONE = Moved(0.0, 0.0)


def _is_rising(measured: Sequence[Moved]) -> bool:
    steps = pairwise((_NONE, *measured))
    return all(one.port_bytes < more.port_bytes and one.seconds < more.seconds for one, more in steps)


@dataclass(frozen=True)
class Cost:
    """Of one exchange."""

    messages: int
    """One after the other."""
    port_bytes: float
    """Through the busiest port, one after the other."""
    added_bytes: float


def cost_of(exchange: Exchange, workers: int, size: float, servers: int = 1, vectors: int = 1) -> Cost:
    """The cost by the table.

    Args:
        size: n, bytes of the vector; of `all_gather`, `to_first` and `from_first`, what each tells or is told.
        servers: S; no more than workers count.
        vectors: F, of `direct`.
    """
    if workers == 1:
        return Cost(0, 0.0, 0.0)
    levels = ceil(log2(workers))
    share = size * (workers - 1) / workers
    match exchange:
        case "direct":
            return Cost(2, (vectors + 1) * share, vectors * share)
        case "ring" | "native":
            return Cost(2 * (workers - 1), 2 * share, share)
        case "tree":
            # The root's port: its children come in one after the other, and go out so.
            return Cost(2 * levels, 2 * size * levels, size * levels)
        case "halving_doubling":
            folds = 0 if workers == 1 << levels else 1
            power = 1 << (workers.bit_length() - 1)
            halves = size * (power - 1) / power
            return Cost(2 * (power.bit_length() - 1) + 2 * folds, 2 * halves + 2 * size * folds, halves + size * folds)
        case "server":
            # Its own gradient a server need not send; with S = P this is what `direct` moves.
            moved = (workers - 1) * size / min(servers, workers)
            return Cost(2, 2 * moved, moved)
        case "to_first":
            return Cost(1, size * (workers - 1), size * (workers - 1))
        case "from_first" | "all_gather":
            return Cost(1, size * (workers - 1), 0.0)


def sent_by(exchange: Exchange, rank: int, workers: int, size: float, servers: int = 1, vectors: int = 1) -> float:
    """Bytes that a rank sends to others; arguments as of `cost_of`, but that `vectors` are this rank's, maybe none."""
    if workers == 1:
        return 0.0
    match exchange:
        case "to_first":
            return size if rank else 0.0
        case "from_first":
            return 0.0 if rank else size * (workers - 1)
        case "all_gather":
            return size * (workers - 1)
        case _:
            more = (vectors - 1) * size * (workers - 1) / workers if exchange == "direct" else 0.0
            return elements_sent(exchange, rank, workers, round(size), servers) + more


def time_of(exchange: Exchange, workers: int, size: float, link: Link, servers: int = 1, vectors: int = 1) -> float:
    """Seconds."""
    cost = cost_of(exchange, workers, size, servers, vectors)
    start_s = cost.messages * WORDS * link.latency_s
    if link.measured_workers > 1 and exchange in link.start_s:
        measured = cost_of(exchange, link.measured_workers, 0.0, servers)
        start_s = link.start_s[exchange] * cost.messages / max(1, measured.messages)
    # Starts that hide behind other messages make what comes behind them look shorter: no exchange beats its port.
    moved_s = max(start_s + link.moved_s(cost.port_bytes, exchange), cost.port_bytes / link.bytes_per_s)
    return moved_s + cost.added_bytes * link.add_s_per_byte


def labels_s(workers: int, link: Link) -> float:
    """Seconds of gloo's all-gather of next to nothing: a ring of P-1 messages."""
    return time_of("ring", workers, 0.0, link) / 2
