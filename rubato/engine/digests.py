"""Digests that a thread computes beside the microbatches of a step, where these leave a core free."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from rubato.engine.state import TrainingState, digest_of_part

Parts = tuple[tuple[int, int], ...]
"""(part, parts): shares of the state."""

_THREAD = ThreadPoolExecutor(1, "digest")


class StateDigests:
    """Of the state at the start of a step: nothing in it may change before they are asked for, but what is copied."""

    def __init__(self) -> None:
        self._step = -1
        self._parts: Parts = ()
        self._found: Future[tuple[int, ...]] | None = None

    def begin(self, state: TrainingState, step: int, parts: Parts) -> None:
        """Compute them meanwhile."""
        if parts:
            self._step, self._parts = step, parts
            self._found = _THREAD.submit(_digests, *state.capture(), parts)

    def of(self, state: TrainingState, step: int, parts: Parts) -> tuple[int, ...]:
        """Those of these shares: what was begun, or computed now, from the state as it is."""
        found, self._found = self._found, None
        if found is not None and (self._step, self._parts) == (step, parts):
            return found.result()
        return _digests(*state.encode(), parts) if parts else ()


def _digests(document: dict[str, Any], tensors: list[torch.Tensor], parts: Parts) -> tuple[int, ...]:
    return tuple(digest_of_part(document, tensors, *one) for one in parts)
