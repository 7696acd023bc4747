"""Where a job stands among ways to train with several workers. Pure.

The axes are those of Langer et al. 2020, arXiv:2007.03970: what is shared out (data or model), who optimises (all
workers alike, or a central one), how far workers may be apart (synchronous or not), and how they communicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rubato.wire.spec import JobSpec

Pattern = Literal[
    "each worker adds up a part and tells it to all",
    "ring",
    "binomial tree",
    "halving and doubling",
    "each tells all",
    "within machines, then between them",
    "all to one and back",
    "as the program asks",
]
_PATTERNS: dict[str, Pattern] = {
    "auto": "each worker adds up a part and tells it to all",
    "ring": "ring",
    "tree": "binomial tree",
    "halving_doubling": "halving and doubling",
    "fp16": "each worker adds up a part and tells it to all",
    "bf16": "each worker adds up a part and tells it to all",
    "powersgd": "each worker adds up a part and tells it to all",
    "onebit": "each worker adds up a part and tells it to all",
    "topk": "each tells all",
    "threshold": "each tells all",
    "gtopk": "binomial tree",
    "hierarchical_topk": "within machines, then between them",
    "sketched_sgd": "all to one and back",
    "server": "all to one and back",
}


@dataclass(frozen=True)
class Cell:
    """One of the ways."""

    shared_out: Literal["data"]
    """What the workers share out; a model that is shared out itself is refused by the spec."""
    gradients: Literal["decentralised", "centralised"]
    """Whether all workers add up, or one does."""
    consistency: Literal["synchronous", "synchronous, after updates of one's own"]
    """Nobody begins a step before all gradients of the one before are in the weights; a step is one update, or many."""
    pattern: Pattern


def cell_of(spec: JobSpec) -> Cell:
    """The one cell of a job."""
    return Cell(
        "data",
        "centralised" if spec.aggregation.name in ("sketched_sgd", "server") else "decentralised",
        "synchronous, after updates of one's own" if spec.local_updates.is_on else "synchronous",
        _pattern_of(spec),
    )


def _pattern_of(spec: JobSpec) -> Pattern:
    if spec.backend != "rubato":
        return "as the program asks"
    if spec.aggregation.name == "sketch":
        algorithm = spec.aggregation.algorithm
        return _PATTERNS["tree" if algorithm == "auto" else algorithm]
    return _PATTERNS[spec.aggregation.name]
