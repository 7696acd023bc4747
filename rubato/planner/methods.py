"""What each way to exchange gradients puts on the wire. Pure; the bytes are those of `rubato.strategies`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Literal

from rubato.engine.tree import Tree
from rubato.planner.links import Exchange, Link, sent_by, time_of
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut
from rubato.strategies.sizes import CANDIDATES, INDEX_BYTES, Pattern, columns_for, count_of
from rubato.wire.local_updates import LED, LocalMethod

Method = Literal["none", "fp16", "bf16", "powersgd", "topk", "gtopk", "threshold", "onebit", "sketch", "sketched_sgd"]


@dataclass(frozen=True)
class Strategy:
    """How a step's gradients become one sum."""

    method: Method = "none"
    algorithm: Pattern = "direct"
    """Of dense sums."""
    density: float = 0.001
    rank: int = 4
    rows: int = 5
    columns: int | None = None
    """Of a sketch; None: so many that it has as many elements as its second look."""
    sketch_algorithm: Pattern = "tree"
    """Of the sums of a sketch."""
    tree: int = 0
    """Microbatches of the tree in whose order the engine's own exchange adds up; 0: in any order."""
    servers: int = 0
    """Parameter servers among the workers; 0: none."""
    local: LocalMethod = "none"
    """Whether a step has updates of its own; at its end the whole state is exchanged then."""
    sync_every: int = 1
    """So many: of each microbatch, or of the server."""
    fragments: int = 1
    """Of `streaming_diloco`: one of so many is exchanged."""
    backups: int = 0
    """Of synchronous updates by a server."""
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
        if strategy.local == "streaming_diloco":  # the whole state only where workers come or go, or it is saved
            return [Message("direct", e * ceil(profile.parameters / strategy.fragments))]
        closing = Message("direct", max(profile.state_bytes, e * profile.parameters))
        if strategy.local not in ("synchronous", "asynchronous"):
            return [closing]
        vector, helpers = e * profile.parameters, workers - 1
        if strategy.local == "synchronous":  # each tells its gradient and gets weights, at each update but the first
            updates = strategy.sync_every
            return [Message("to_first", vector * updates), Message("from_first", vector * (updates - 1)), closing]
        # A gradient to the server for each update, and weights back, but at the beginning, when all have the same.
        pulled = max(0, strategy.sync_every - helpers)
        return [
            Message("to_first", vector * strategy.sync_every / helpers),
            Message("from_first", vector * pulled / helpers),
            closing,
        ]
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
        case "sketch" | "sketched_sgd":
            table = strategy.rows * (strategy.columns or columns_for(chosen, strategy.rows))
            candidates = min(CANDIDATES * chosen, compressed)
            if strategy.method == "sketch":
                told = [Message(strategy.sketch_algorithm, e * size) for size in (table, candidates)]
            else:
                told = [
                    Message("to_first", e * table),
                    Message("from_first", INDEX_BYTES * candidates),
                    Message("to_first", e * candidates),
                    Message("from_first", INDEX_BYTES * chosen),
                    Message("from_first", e * chosen),
                ]
    return [*told, dense]


def exchange_s(strategy: Strategy, profile: Profile, workers: int, link: Link, elements: int | None = None) -> float:
    """Seconds that the exchanges of a step, or of a bucket of a dense one, take."""
    told = messages(strategy, profile, workers, elements)
    return sum(message_s(one, strategy, workers, link) for one in told)


def message_s(message: Message, strategy: Strategy, workers: int, link: Link) -> float:
    """Seconds that one of them takes."""
    most = max(_vectors(strategy, workers))
    return time_of(message.exchange, workers, message.size, link, max(1, strategy.servers), most)


def sent_bytes(strategy: Strategy, profile: Profile, workers: int, samples: float = 0.0) -> float:
    """What the busiest worker sends to others in the exchanges of a step.

    Args:    samples: of an update, by all together; what goes over a cut depends on them.
    """
    told = messages(strategy, profile, workers)
    servers = max(1, strategy.servers)
    by_rank = [
        sum(sent_by(one.exchange, rank, workers, one.size, servers, vectors) for one in told)
        for rank, vectors in enumerate(_vectors(strategy, workers))
    ]
    if strategy.cut is not None and workers > 1:
        updates = strategy.cut.sent(profile, workers, samples)
        by_rank = [closing + strategy.sync_every * each for closing, each in zip(by_rank, updates, strict=True)]
        by_rank[-1] += strategy.cut.handed_bytes(profile)
    return max(by_rank)


def _vectors(strategy: Strategy, workers: int) -> tuple[int, ...]:
    """By rank, how many vectors it tells in a sum; where one leads, it alone has any."""
    return (1, *(0,) * (workers - 1)) if strategy.local in LED else vectors_of(strategy.tree, workers)


@lru_cache(maxsize=1024)
def vectors_of(microbatches: int, workers: int) -> tuple[int, ...]:
    """By rank, how many vectors it tells: nodes of the tree over the microbatches that it computes, in equal runs.

    Args:    microbatches: of the tree; 0: sums are made in any order, so that each tells one.
    """
    if not microbatches:
        return (1,) * workers
    tree = Tree.of(microbatches)
    # As `engine.tree.balanced_owners` shares them out.
    bounds = [-(-microbatches * rank // workers) for rank in range(workers + 1)]
    return tuple(tree.count_nodes(*run) for run in pairwise(bounds))


def codec_s(strategy: Strategy, profile: Profile) -> float:
    """Seconds to compress and decompress a step; 0 where that was not measured."""
    return profile.codec_s.get(strategy.method, 0.0) * profile.compressed
