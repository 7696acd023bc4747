"""Random numbers as a function of a key: every generator that user code may draw from, seeded at once.

Microbatch v of step s draws the same numbers whoever computes it and however often, because all global generators are
seeded from (job seed, s, v) before it, not because anybody carries generator state around. This runs for every sample
too, so it is made to be cheap: about 15 microseconds on a CPU.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import torch

try:
    # Imported here and not when first seen in sys.modules: a dataset that imports numpy inside its first item would
    # draw from a generator that nobody has seeded.
    import numpy as np
except ImportError:  # torch works without numpy
    np = None  # type: ignore[assignment]


@dataclass(frozen=True)
class RandomState:
    """The state of every global generator, as `capture` found it."""

    python: tuple[Any, ...]
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...]


def seed_all(seed: int, *key: int | str) -> None:
    """Seed `random`, numpy's global generator, and torch's on CPU and (once initialised) CUDA from (seed, *key).

    Each generator gets its own part of the hash, so that none repeats another's stream.
    """
    digest = hashlib.blake2b(_encode(seed, key), digest_size=20).digest()
    word = int.from_bytes(digest, "little")
    torch_seed = word & 0x7FFF_FFFF_FFFF_FFFF
    random.seed((word >> 64) & 0xFFFF_FFFF_FFFF_FFFF)
    if np is not None:
        np.random.seed(word >> 128)  # 32 bits: all that the legacy generator takes without its slow array path
    # torch.manual_seed would do, but it also looks for every kind of accelerator: 120 microseconds.
    torch.default_generator.manual_seed(torch_seed)
    if _has_cuda():
        torch.cuda.manual_seed_all(torch_seed)


def capture() -> RandomState:
    """The state of every global generator, to `restore` later."""
    return RandomState(
        python=random.getstate(),
        numpy=None if np is None else np.random.get_state(),
        torch_cpu=torch.get_rng_state(),
        torch_cuda=tuple(torch.cuda.get_rng_state_all()) if _has_cuda() else (),
    )


def restore(state: RandomState) -> None:
    """Put every global generator back to where `capture` found it."""
    random.setstate(state.python)
    if np is not None and state.numpy is not None:
        np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch_cpu)
    if state.torch_cuda:
        torch.cuda.set_rng_state_all(list(state.torch_cuda))


def _has_cuda() -> bool:
    """Whether this process has CUDA generators; a process that never touched CUDA is left so."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _encode(seed: int, key: tuple[int | str, ...]) -> bytes:
    """Bytes in which no two keys are alike: `(1, 23)` is not `(12, 3)`, and `3` is not `"3"`."""
    return repr((seed, *key)).encode()
