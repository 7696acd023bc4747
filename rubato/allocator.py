"""What the C library does with the memory of tensors that were freed.

glibc gives large blocks back to the kernel at once, and gets them anew, zeroed page by page, for the next tensor of
that size. A training step frees and allocates its activations and gradients again and again, with thousands of page
faults (docs/experiments.md says what they cost). Allocators that people preload for that reason keep the memory; so
does glibc, when it is told to.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h: parameters of mallopt(3)."""
_KEPT_BYTES = (1 << 31) - 1
"""The most that is kept at the end of the heap: an int's maximum."""
_LARGEST_BYTES = 1 << 30
"""Blocks that are larger still go back at once."""


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Have this process keep the memory of freed tensors for the next ones.

    Returns: False where the C library is not glibc, or where the environment says how it is to allocate.
    """
    is_chosen = "LD_PRELOAD" in environment or any(name.startswith(("MALLOC_", "GLIBC_")) for name in environment)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_chosen or mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES))
