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
    "as gloo or NCCL has it",
    "each tells all",
    "within machines, then between them",
    "all to one and back",
    "as the program asks",
]
Consistency = Literal[
    "synchronous",
    "synchronous, after updates of one's own",
    "bounded staleness within a step",
    "asynchronous within a step",
]
_PATTERNS: dict[str, Pattern] = {
    "auto": "each worker adds up a part and tells it to all",
    "ring": "ring",
    "tree": "binomial tree",
    "halving_doubling": "halving and doubling",
    "native": "as gloo or NCCL has it",
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

    shared_out: Literal["data", "data, and the layers behind a cut"]
    """What the workers share out; a model that is shared out altogether is refused by the spec."""
    gradients: Literal["decentralised", "centralised"]
    """Whether all workers add up, or one does."""
    consistency: Consistency
    """Nobody begins a step before all gradients of the one before are in the weights; a step is one update, or many,
    and within one gradients may be of older weights."""
    pattern: Pattern


def cell_of(spec: JobSpec) -> Cell:
    """The one cell of a job."""
    is_separated = spec.local_updates.method == "layer_separation"
    return Cell(
        "data, and the layers behind a cut" if is_separated else "data",
        "centralised" if _has_centre(spec) else "decentralised",
        _consistency_of(spec),
        _pattern_of(spec),
    )


def _has_centre(spec: JobSpec) -> bool:
    return spec.aggregation.name in ("sketched_sgd", "server") or spec.local_updates.is_led


def _consistency_of(spec: JobSpec) -> Consistency:
    local = spec.local_updates
    if local.is_asynchronous:
        return "asynchronous within a step" if local.staleness is None else "bounded staleness within a step"
    is_synchronous = not local.is_on or local.is_led
    return "synchronous" if is_synchronous else "synchronous, after updates of one's own"


def _pattern_of(spec: JobSpec) -> Pattern:
    if spec.backend != "rubato":
        return "as the program asks"
    if spec.local_updates.is_led:
        return "all to one and back"
    if spec.aggregation.name == "sketch":
        algorithm = spec.aggregation.algorithm
        return _PATTERNS["tree" if algorithm == "auto" else algorithm]
    return _PATTERNS[spec.aggregation.name]
