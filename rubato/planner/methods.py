"""What each way to exchange gradients puts on the wire. Pure; the bytes are those of `rubato.strategies`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from rubato.planner.links import Exchange, Link, time_of
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut
from rubato.strategies.sizes import CANDIDATES, INDEX_BYTES, columns_for, count_of
from rubato.wire.local_updates import LocalMethod

Method = Literal["none", "fp16", "bf16", "powersgd", "topk", "gtopk", "threshold", "onebit", "sketch", "sketched_sgd"]


@dataclass(frozen=True)
class Strategy:
    """How a step's gradients become one sum."""

    method: Method = "none"
    algorithm: Exchange = "direct"
    """Of dense sums."""
    density: float = 0.001
    rank: int = 4
    rows: int = 5
    """Of a sketch."""
    servers: int = 0
    """Parameter servers among the workers; 0: none."""
    local: LocalMethod = "none"
    """Whether a step has updates of its own; at its end the whole state is exchanged then."""
    sync_every: int = 1
    """So many: of each microbatch, or of the server."""
    cut: Cut | None = None
    """Of separated layers."""

    @property
    def overlaps(self) -> bool:
        """Whether the exchange begins while the backward pass still computes; on a GPU none does."""
        is_plain = self.method == "none" and self.algorithm == "direct" and not self.servers
        return is_plain and self.local == "none"


@dataclass(frozen=True)
class Message:
    """One exchange of a step."""

    exchange: Exchange
    size: float
    """Bytes, as `links.cost_of` takes them."""


def messages(strategy: Strategy, profile: Profile, workers: int, elements: int | None = None) -> list[Message]:
    """The exchanges of a step, or of a bucket of a dense one.

    Args:    elements: of the bucket; None: all.
    """
    if workers == 1:
        return []
    e = profile.element_bytes
    if strategy.servers:
        return [Message("server", e * profile.parameters)]
    if strategy.local != "none":
        closing = Message("direct", max(profile.state_bytes, e * profile.parameters))
        if strategy.local != "asynchronous":
            return [closing]
        # Of each update to the server and back, whoever computed it.
        return [Message("server", e * profile.parameters * strategy.sync_every / (workers - 1)), closing]
    if strategy.method == "none":
        return [Message(strategy.algorithm, e * (profile.parameters if elements is None else elements))]
    matrices, compressed = profile.matrices, profile.compressed
    dense = Message("direct", e * (profile.parameters - compressed))
    chosen = count_of(strategy.density, compressed)
    entry = INDEX_BYTES + e
    match strategy.method:
        case "fp16" | "bf16":
            told = [Message("direct", 2 * compressed)]
        case "powersgd":
            ranks = [(rows, columns, min(strategy.rank, rows, columns)) for rows, columns in matrices]
            told = [Message("direct", e * sum(side[which] * side[2] for side in ranks)) for which in (0, 1)]
        case "topk":
            per_tensor = sum(count_of(strategy.density, rows * columns) for rows, columns in matrices)
            told = [Message("all_gather", entry * per_tensor)]
        case "gtopk":
            told = [Message("tree", entry * chosen)]
        case "threshold":
            told = [Message("all_gather", 8), Message("all_gather", INDEX_BYTES * chosen)]
        case "onebit":
            told = [Message("direct", sum(ceil(rows * columns / 8) + 2 * e * rows for rows, columns in matrices))]
        case "sketch":
            width = columns_for(chosen, strategy.rows)
            told = [Message("tree", e * strategy.rows * width), Message("tree", e * CANDIDATES * chosen)]
        case "sketched_sgd":
            width = columns_for(chosen, strategy.rows)
            # In by each, out to each: half of it is what `server` moves both ways.
            both = e * (strategy.rows * width + CANDIDATES * chosen)
            back = INDEX_BYTES * (CANDIDATES + 1) * chosen + e * chosen
            told = [Message("server", both / 2), Message("server", back / 2)]
    return [*told, dense]


def exchange_s(strategy: Strategy, profile: Profile, workers: int, link: Link, elements: int | None = None) -> float:
    """Seconds that the exchanges of a step, or of a bucket of a dense one, take."""
    told = messages(strategy, profile, workers, elements)
    return sum(time_of(one.exchange, workers, one.size, link, max(1, strategy.servers)) for one in told)


def codec_s(strategy: Strategy, profile: Profile) -> float:
    """Seconds to compress and decompress a step; 0 where that was not measured."""
    return profile.codec_s.get(strategy.method, 0.0) * profile.compressed
