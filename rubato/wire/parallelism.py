"""How a model is laid over the workers: the `parallelism` of a job spec."""

from __future__ import annotations

from dataclasses import dataclass

from rubato.errors import check_rules

_INSTEAD = "every worker of this release has the whole model; leave it at 1"


@dataclass(frozen=True)
class ParallelismSpec:
    """All workers have the whole model, and each computes a part of the batch (data parallelism): more is refused."""

    tensor: int = 1
    """Workers that share each layer (tensor parallelism); 1."""
    pipeline: int = 1
    """Workers one behind the other, with some of the layers each (pipeline parallelism); 1."""

    def __post_init__(self) -> None:
        check_rules(
            (self.tensor == 1, "tensor", f"got {self.tensor}, but layers cannot be shared out: {_INSTEAD}"),
            (self.pipeline == 1, "pipeline", f"got {self.pipeline}, but models cannot be cut into stages: {_INSTEAD}"),
        )
