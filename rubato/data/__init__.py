"""Which samples a microbatch holds, the random numbers it sees, and how its rows are read.

For users: `ShardedStream`, data in shards that is read one after the other; `CachedFiles`, remote files behind memory
and disk.

`order` the sample order as a function of the step · `randomness` seeds by key · `fetch` rows to fresh tensors ·
`source` microbatches of datasets that are read by index, `stream` of those that are not · `prefetch` reading ahead in
processes, `prefetch_process` one of them · `segment` objects in shared memory.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rubato.data.cache import CachedFiles
    from rubato.data.stream import ShardedStream

__all__ = ["CachedFiles", "ShardedStream"]

_PUBLIC = {"CachedFiles": "rubato.data.cache", "ShardedStream": "rubato.data.stream"}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'rubato.data' has no attribute {name!r}")
