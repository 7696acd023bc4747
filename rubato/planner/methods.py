"""What each way to exchange gradients puts on the wire. Pure; the bytes are those of `rubato.strategies`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil

from rubato.engine.tree import Tree
from rubato.planner.links import Exchange, Link, sent_by, time_of
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut
from rubato.strategies.sizes import CANDIDATES, INDEX_BYTES, Pattern, columns_for, count_of
from rubato.wire.aggregation import CORRECTED, KEEPING_NOTHING, Method
from rubato.wire.local_updates import LED, LocalMethod

COUNT_BYTES = 8
"""Of a number of words, told before them."""


@dataclass(frozen=True)
class Strategy:
    """How a step's gradients become one sum."""

    method: Method = "none"
    algorithm: Pattern = "direct"
    """Of dense sums."""
    density: float = 0.001
    """Of `threshold`: the share of the elements that is taken to grow beyond it in a step."""
    machines: int = 0
    """Of `hierarchical_topk`: so many with equally many workers, who share its port; 0: each worker has its own. Links
    within a machine take no time."""
    rank: int = 4
    rows: int = 5
    columns: int | None = None
    """Of a sketch; None: as `strategies.sizes.columns_for` has it."""
    momentum: bool = False
    """Whether what is kept gathers momentum, where the method can."""
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
    delay: int = 0
    """Of `streaming_diloco`: while so many updates are made."""
    backups: int = 0
    """Of synchronous updates by a server."""
    cut: Cut | None = None
    """Of separated layers."""

    @property
    def overlaps(self) -> bool:
        """Whether the exchange begins while the backward pass still computes; on a GPU none does."""
        return self.is_own and self.local == "none"

    @property
    def is_own(self) -> bool:
        """Whether the engine's own exchange ends a step."""
        is_plain = self.method == "none" and self.algorithm == "direct" and not self.servers
        return is_plain and self.local != "streaming_diloco"

    @property
    def kept_parts(self) -> int:
        """How often each worker keeps what is compressed: as many parts as a compressor has of its own."""
        if self.method in KEEPING_NOTHING:
            return 0
        return 2 if self.method == "onebit" or (self.momentum and self.method in CORRECTED) else 1


@dataclass(frozen=True)
class Message:
    """One exchange of a step."""

    exchange: Exchange
    size: float
    """Bytes, as `links.cost_of` takes them."""
    among: int = 0
    """So many ports take part; 0: those of all workers."""


def messages(strategy: Strategy, profile: Profile, workers: int, elements: int | None = None) -> list[Message]:
    """The exchanges of a step, or of a bucket of a dense one.

    A profile tells of buffers in the state only: what they add to gradients, and to weights of a server, is left out.

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
        closing = Message("direct", profile.closing_bytes)
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
        case "threshold":
            told = [Message("all_gather", size) for size in (COUNT_BYTES, INDEX_BYTES * chosen)]
        case "hierarchical_topk":
            told = [Message("all_gather", entry * chosen, strategy.machines)]
        case "gtopk":
            told = [Message("tree", entry * chosen)]
        case "onebit":
            told = [Message("direct", sum(ceil(rows * columns / 8) + 2 * e * rows for rows, columns in matrices))]
        case "sketch" | "sketched_sgd":
            table = strategy.rows * (strategy.columns or columns_for(chosen, compressed, strategy.rows))
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
    _, most = _most_vectors(strategy, workers)
    among = message.among or workers
    return time_of(message.exchange, among, message.size, link, max(1, strategy.servers), most)


def settlement_s(strategy: Strategy, profile: Profile, workers: int, link: Link) -> float:
    """Seconds in which all tell each other what each keeps, before a checkpoint: whole sums, part by part."""
    if strategy.local == "streaming_diloco":
        return time_of("direct", workers, profile.closing_bytes, link)
    return strategy.kept_parts * time_of("direct", workers, profile.element_bytes * profile.compressed, link)


def sent_bytes(strategy: Strategy, profile: Profile, workers: int, samples: float = 0.0) -> float:
    """What the busiest worker sends to others in the exchanges of a step.

    Args:    samples: of an update, by all together; what goes over a cut depends on them.
    """
    if workers == 1:
        return 0.0
    told, servers = messages(strategy, profile, workers), max(1, strategy.servers)
    by_rank: dict[int, float] = {}
    for rank in _ranks(strategy, workers):
        vectors = _vectors(strategy, workers, rank)
        by_rank[rank] = sum(
            sent_by(one.exchange, rank, one.among or workers, one.size, servers, vectors) for one in told
        )
    if strategy.cut is not None:
        updates = strategy.cut.sent(profile, workers, samples)
        by_rank = {rank: closing + strategy.sync_every * updates[rank] for rank, closing in by_rank.items()}
        by_rank[workers - 1] += strategy.cut.handed_bytes(profile)
    return max(by_rank.values())


def _ranks(strategy: Strategy, workers: int) -> set[int]:
    """One of each kind, as to what it sends: who leads, who serves, who only helps, and who tells most vectors."""
    most, _ = _most_vectors(strategy, workers)
    keepers = strategy.cut.keepers if strategy.cut is not None else 1
    return {0, 1, most, min(max(1, strategy.servers), workers) - 1, workers - 1, *range(min(keepers, workers // 2))}


def _vectors(strategy: Strategy, workers: int, rank: int) -> int:
    """How many vectors a rank tells in a sum; where one leads, it alone has any."""
    if strategy.local in LED:
        return int(rank == 0)
    return vectors_of(strategy.tree, workers)[rank] if strategy.tree else 1


def _most_vectors(strategy: Strategy, workers: int) -> tuple[int, int]:
    """The first rank that tells most, and how many."""
    if strategy.local in LED or not strategy.tree:
        return 0, 1
    return _most_of(strategy.tree, workers)


@lru_cache(maxsize=1024)
def _most_of(microbatches: int, workers: int) -> tuple[int, int]:
    vectors = vectors_of(microbatches, workers)
    return vectors.index(max(vectors)), max(vectors)


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


def codec_s(strategy: Strategy, profile: Profile, workers: int) -> float:
    """Seconds to compress and decompress a step, and to merge what others tell; 0 where that was not measured.

    One worker alone compresses as well, so that what is learned does not begin to differ when others join. Steps are
    those behind `start_step`; before it they are exchanged whole.
    """
    merged = merges(strategy.method, workers) * profile.merge_s.get(strategy.method, 0.0)
    return (profile.codec_s.get(strategy.method, 0.0) + merged) * profile.compressed


def merges(method: str, workers: int) -> int:
    """Lists of others that the busiest worker merges with its own in a step."""
    return {"topk": workers - 1, "gtopk": (workers - 1).bit_length()}.get(method, 0)
