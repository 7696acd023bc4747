"""Horovod's interface to PyTorch, for scripts that are to run as Rubato jobs: `import rubato.hvd as hvd`.

The script sees one rank with the whole data set and the whole batch; behind its loop over batches the engine shares
out the microbatches, adds the gradients and updates once a step (ADR 39, docs/how-to/horovod.md). What cannot be kept
exact is refused with what to write instead.
"""

from __future__ import annotations

from typing import Any

import torch

from rubato.errors import ModelError
from rubato.hvd import elastic
from rubato.hvd.optimizer import Average, Compression, DistributedOptimizer, Max, Min, Sum
from rubato.hvd.script import present

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "elastic",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def init(*_: Any, **__: Any) -> None:
    """Begin; communicators and process sets are not looked at.

    Raises:
        ModelError: the script was not started by Rubato; the message says how to.
    """
    present().is_initialized = True


def shutdown() -> None:
    """Nothing: the job ends when the script's function returns."""


def is_initialized() -> bool:
    """Whether `init` was called."""
    return present().is_initialized


def size() -> int:
    """1: the script is one rank, whatever the number of workers."""
    return _one("size")


def local_size() -> int:
    """1, as `size`."""
    return _one("local_size")


def cross_size() -> int:
    """1, as `size`."""
    return _one("cross_size")


def rank() -> int:
    """0 on every worker: what depends on the rank would depend on who computes."""
    return _one("rank") - 1


def local_rank() -> int:
    """0: a worker sees the GPU that is its own, as the first one."""
    return _one("local_rank") - 1


def cross_rank() -> int:
    """0, as `rank`."""
    return _one("cross_rank") - 1


def is_homogeneous() -> bool:
    """Of one rank: yes."""
    return _one("is_homogeneous") == 1


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **_: Any,
) -> torch.Tensor:
    """Of one rank: a copy of the tensor, whatever the operation. A single number with a name is logged under it.

    Raises:
        ModelError: inside the loop over training batches, where workers have different numbers of them; or a factor.
    """
    _outside("allreduce")
    if (prescale_factor, postscale_factor) != (1.0, 1.0):
        raise ModelError(
            f"hvd.allreduce(prescale_factor={prescale_factor}, postscale_factor={postscale_factor}): a script is one "
            "rank here, so there is nothing to scale back; leave both out, or multiply the tensor"
        )
    script = present()
    if name is not None and tensor.numel() == 1:
        script.log(name, tensor)
    return tensor.detach().clone()


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `allreduce`, in place: the tensor itself."""
    allreduce(tensor, *args, **kwargs)
    return tensor


def allgather(tensor: torch.Tensor, name: str | None = None, **_: Any) -> torch.Tensor:
    """Of one rank: a copy of the tensor.  Raises:  ModelError: as `allreduce`."""
    _outside("allgather")
    return tensor.detach().clone()


def allgather_object(obj: Any, name: str | None = None, **_: Any) -> list[Any]:
    """Of one rank: a list of the object.  Raises:  ModelError: as `allreduce`."""
    _outside("allgather_object")
    return [obj]


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, **_: Any) -> torch.Tensor:
    """A copy of the tensor.  Raises:  ModelError: as `allreduce`, or another root than 0."""
    _from_root("broadcast", root_rank)
    return tensor.detach().clone()


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, **_: Any) -> torch.Tensor:
    """The tensor itself.  Raises:  ModelError: as `broadcast`."""
    _from_root("broadcast_", root_rank)
    return tensor


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, **_: Any) -> Any:
    """The object itself.  Raises:  ModelError: as `broadcast`."""
    _from_root("broadcast_object", root_rank)
    return obj


def broadcast_parameters(params: Any, root_rank: int = 0, **_: Any) -> None:
    """Nothing: all workers build alike under one seed, and joiners are given the state.

    Raises:  ModelError: as `broadcast`.
    """
    _from_root("broadcast_parameters", root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0, **_: Any) -> None:
    """Nothing, as `broadcast_parameters`.  Raises:  ModelError: as `broadcast`."""
    _from_root("broadcast_optimizer_state", root_rank)


def barrier(*_: Any, **__: Any) -> None:
    """Nothing: there is one rank.  Raises:  ModelError: as `allreduce`."""
    _outside("barrier")


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"rubato.hvd has no {name!r}. What it has: {', '.join(__all__)}. Programs exchange nothing of their own: "
        "write what is more than that with `def train(run): ...` (docs/how-to/write-a-job.md)"
    )


def _one(what: str) -> int:
    if not present().is_initialized:
        raise ModelError(f"hvd.{what}() came before hvd.init(); call that first")
    return 1


def _outside(what: str) -> None:
    _one(what)
    if present().is_in_batch:
        raise ModelError(
            f"hvd.{what} was called in the loop over training batches, of which workers go through different numbers, "
            "so that nobody could answer. The loss is averaged over the whole batch and charted without it; compute "
            "other values after the loop, on data that is read under model.eval()"
        )


def _from_root(what: str, root_rank: int) -> None:
    _outside(what)
    if root_rank != 0:
        raise ModelError(
            f"hvd.{what} was asked for from rank {root_rank}; a script is one rank here, so say root_rank=0"
        )
