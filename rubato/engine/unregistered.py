"""What changes training and nobody registered: a worker that joins, and a run that goes on, would not have it."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

_KINDS = (torch.amp.GradScaler, LRScheduler, AveragedModel)
_DEPTH = 4
"""How deep a registered thing is searched: a wrapper that holds a list of schedulers is two deep."""


def unregistered(known: Iterable[object]) -> list[str]:
    """Names of the classes of living scalers, schedulers and averaged models that no known thing holds, sorted.

    Looks through all objects of the process (60 ms with torch alone, 2 cores): for the warm-up, not for a step.

    Args:  known: what is saved and given to joiners; what these hold counts as known.
    """
    roots = list(known)
    if not _loose(roots):
        return []
    gc.collect()  # what was dropped in a cycle is alive until then
    return _loose(roots)


def _loose(roots: list[object]) -> list[str]:
    # An object refers to its class. `gc.get_objects()` would hold the tuples too that other threads are making from
    # generators just then, and CPython refuses to end those (SystemError). By type(), because isinstance asks
    # __class__, and proxies answer by doing things.
    classes = {each for kind in _KINDS for each in _with_subclasses(kind)}
    living = [one for one in gc.get_referrers(*classes) if type(one) in classes and _is_used(one)]
    if not living:
        return []
    held = {id(one) for one in _reachable(roots)}
    return sorted(type(one).__name__ for one in living if id(one) not in held)


def _with_subclasses(kind: type[Any]) -> list[type[Any]]:
    subclasses: list[type[Any]] = kind.__subclasses__()
    return [kind, *(each for one in subclasses for each in _with_subclasses(one))]


def _is_used(thing: object) -> bool:
    return not isinstance(thing, torch.amp.GradScaler) or thing.is_enabled()


def _reachable(roots: Iterable[object]) -> list[object]:
    found: list[object] = []
    seen: set[int] = set()
    layer = list(roots)
    for _ in range(_DEPTH):
        fresh = []
        for one in layer:
            if id(one) not in seen:
                seen.add(id(one))
                fresh.append(one)
        found += fresh
        layer = [part for one in fresh for part in _parts(one)]
    return found


def _parts(thing: object) -> list[object]:
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, (list, tuple)):
        return list(thing)
    return list(getattr(thing, "__dict__", {}).values())
