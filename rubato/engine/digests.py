"""Digests that a thread computes beside the microbatches of a step, where these leave a core free."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

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
        """Compute them meanwhile. On a GPU they wait for nothing but launches, and are made when they are asked for."""
        if not parts or any(tensor.is_cuda for _, tensor in state.named_parameters()):
            return
        document, tensors = state.capture()
        self._step, self._parts = step, parts
        self._found = _THREAD.submit(lambda: tuple(digest_of_part(document, tensors, *one) for one in parts))

    def of(self, state: TrainingState, step: int, parts: Parts) -> tuple[int, ...]:
        """Those of these shares: what was begun, or computed now, from the state as it is."""
        found, self._found = self._found, None
        if found is not None and (self._step, self._parts) == (step, parts):
            return found.result()
        return tuple(state.quick_digest(*one) for one in parts)
