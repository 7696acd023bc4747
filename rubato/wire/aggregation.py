"""How the gradients of a step become one sum: the `aggregation` of a job spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rubato.errors import check_rules

if TYPE_CHECKING:
    from rubato.wire.spec import JobSpec

Algorithm = Literal["auto", "ring", "tree", "halving_doubling", "server", "native"]
Method = Literal[
    "none",
    "fp16",
    "bf16",
    "powersgd",
    "topk",
    "gtopk",
    "hierarchical_topk",
    "sketch",
    "sketched_sgd",
    "onebit",
    "threshold",
]
OnLoss = Literal["continue", "rollback"]
KEEPING_NOTHING: frozenset[Method] = frozenset({"none", "fp16", "bf16"})
CORRECTED: frozenset[Method] = frozenset({"topk", "sketch", "sketched_sgd"})
"""Methods whose residual may carry momentum."""
SPARSE: frozenset[Method] = frozenset({"topk", "gtopk", "hierarchical_topk", "sketch", "sketched_sgd"})
"""Methods that send a share of the elements."""
SKETCHES: frozenset[Method] = frozenset({"sketch", "sketched_sgd"})
SETTINGS: dict[str, frozenset[Method]] = {
    "density": SPARSE,
    "rank": frozenset({"powersgd"}),
    "threshold": frozenset({"threshold"}),
    "rows": SKETCHES,
    "columns": SKETCHES,
}
"""By setting, the methods that have it; with all others `rubato plan` reckons with it, as it looks at these, too."""
PLACED: frozenset[Method] = frozenset({"topk", "gtopk", "hierarchical_topk", "sketch", "sketched_sgd", "threshold"})
"""Methods that name places, in 32 bits."""
MAX_RANK = 1_024
MAX_SERVERS = 4_096
MAX_ROWS = 25
MAX_COLUMNS = 2**30
MAX_STAGES = 100
MAX_STEPS = 1_000_000_000_000


@dataclass(frozen=True)
class CompressionSpec:
    """What of a gradient travels; see `docs/explanation/strategies.md`."""

    method: Method = "none"
    """`fp16`, `bf16`: half the digits. `powersgd`: matrices of low rank. `topk`, `gtopk`, `hierarchical_topk`,
    `threshold`: only large elements. `sketch` (gs-SGD), `sketched_sgd`: large elements, found in a summed sketch.
    `onebit`: signs. What does not travel is kept for later steps, but for what fp16 and bf16 round off."""
    density: float = 0.001
    """Of the methods that send large elements: the share that travels in a step, above 0 to 1."""
    warmup_densities: tuple[float, ...] = ()
    """Of the first epochs, one each, instead of `density`: [0.25, 0.06, 0.015, 0.004], say; at most 100."""
    rank: int = 4
    """Of `powersgd`: of the matrices that travel, 1 to 1024."""
    threshold: float = 0.001
    """Of `threshold`: how large what is kept of an element grows before it travels, in units of the gradient."""
    rows: int = 5
    """Of a sketch: its rows, 1 to 25."""
    columns: int | Literal["auto"] = "auto"
    """Of a sketch: its columns; `auto`: as many as give all rows together 16 elements for each that travels and a
    sixteenth of all, but at most half of all. That finds 95 % of the elements that stand out, up to a density of 0.05.
    A larger one is too large for a sketch: it finds fewer, and from 0.125 on sends no less than whole gradients."""
    momentum: float = 0.0
    """Of `topk` and the sketches: momentum that what is kept gathers (momentum correction), 0 to below 1; then the
    optimizer must have none of its own. 0: none."""
    start_step: int = 0
    """So many first steps are exchanged whole."""
    on_loss: OnLoss = "continue"
    """What a lost worker had kept is gone with it. `continue`: the others train on without that, and are told how much
    it was. `rollback`: all go back to the newest checkpoint, so that nothing is lost; it counts as a restart."""

    def __post_init__(self) -> None:
        check_rules(
            (0 < self.density <= 1, "density", f"must lie above 0 and be at most 1, got {self.density}"),
            *(
                (0 < one <= 1, f"warmup_densities[{place}]", f"must lie above 0 and be at most 1, got {one}")
                for place, one in enumerate(self.warmup_densities)
            ),
            (len(self.warmup_densities) <= MAX_STAGES, "warmup_densities", f"must be at most {MAX_STAGES}"),
            (
                not self.warmup_densities or self.method in SPARSE,
                "warmup_densities",
                f"{self.method} has no density; leave it out",
            ),
            (1 <= self.rank <= MAX_RANK, "rank", f"must lie in 1..{MAX_RANK}, got {self.rank}"),
            (0 < self.threshold < float("inf"), "threshold", f"must be more than 0, got {self.threshold}"),
            (1 <= self.rows <= MAX_ROWS, "rows", f"must lie in 1..{MAX_ROWS}, got {self.rows}"),
            (
                self.columns == "auto" or 1 <= self.columns <= MAX_COLUMNS,
                "columns",
                f"must lie in 1..{MAX_COLUMNS}, or be auto; got {self.columns}",
            ),
            (0 <= self.momentum < 1, "momentum", f"must be at least 0 and below 1, got {self.momentum}"),
            (
                self.momentum == 0 or self.method in CORRECTED,
                "momentum",
                f"{self.method} cannot carry momentum; give it to the optimizer, or use one of "
                f"{', '.join(sorted(CORRECTED))}",
            ),
            (0 <= self.start_step <= MAX_STEPS, "start_step", f"must lie in 0..{MAX_STEPS}, got {self.start_step}"),
            (
                self.on_loss == "continue" or self.method not in KEEPING_NOTHING,
                "on_loss",
                f"{self.method} keeps nothing that could be lost; leave it out",
            ),
        )


@dataclass(frozen=True)
class AggregationSpec:
    """How the gradients of a step become one sum; all but the default needs `reproducible: false`."""

    algorithm: Algorithm = "auto"
    """Of whole sums. `auto`: each worker adds up a part, and tells it to all: the least bytes, and it begins while
    gradients are computed. `ring`, `tree` (FireCaffe's) and `halving_doubling` exchange them whole, behind that; with
    `server` some of the workers add up for all, as parameter servers do. `native`: the all-reduce of gloo, or NCCL's
    where each worker has a GPU of its own, as data-parallel programs use them without Rubato."""
    servers: int = 1
    """Of `server`: how many of the workers add up, each a part."""
    compression: CompressionSpec = CompressionSpec()
    """What of a gradient travels."""

    def __post_init__(self) -> None:
        check_rules(
            (1 <= self.servers <= MAX_SERVERS, "servers", f"must lie in 1..{MAX_SERVERS}, got {self.servers}"),
            (
                self.servers == 1 or self.algorithm == "server",
                "servers",
                f"{self.algorithm} has none; say algorithm: server, or leave it out",
            ),
        )

    @property
    def unused(self) -> dict[str, frozenset[Method]]:
        """Settings of compression that are given, and do nothing with its method: by name, the methods that have them.

        One that has its usual value is not told from one that is not given.
        """
        usual, given = CompressionSpec(), self.compression
        return {
            name: methods
            for name, methods in SETTINGS.items()
            if given.method not in methods and getattr(given, name) != getattr(usual, name)
        }

    @property
    def is_default(self) -> bool:
        """Whether the engine's own reduction does it."""
        return self.name == "auto"

    @property
    def needs_alike(self) -> bool:
        """Whether all workers compute by themselves what all take for the sum, so that they must compute alike."""
        return self.compression.method == "powersgd"

    @property
    def name(self) -> str:
        """The compression method, or where there is none the algorithm."""
        return self.algorithm if self.compression.method == "none" else self.compression.method


def aggregation_rules(spec: JobSpec) -> list[tuple[bool, str, str]]:
    """(holds, field, message): what does not go together with the rest of a job."""
    chosen = spec.aggregation
    return [
        (
            chosen.is_default or not spec.reproducible,
            "aggregation",
            f"{chosen.name} gives other bits with another number of workers: say reproducible: false, or leave it out",
        ),
        (
            chosen.is_default or spec.backend == "rubato",
            "aggregation",
            "Ray Train exchanges the gradients itself; leave it out",
        ),
        (
            chosen.algorithm == "auto" or chosen.compression.method in ("none", "sketch"),
            "aggregation.algorithm",
            f"{chosen.compression.method} says itself how it is exchanged; leave it out",
        ),
        (
            chosen.algorithm != "server" or chosen.compression.method != "sketch",
            "aggregation.algorithm",
            "a sketch that one worker adds up is compression.method: sketched_sgd",
        ),
    ]
