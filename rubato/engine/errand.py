"""A call that a thread makes while training goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Errand(Generic[T]):
    """One call on its way. On a GPU it has a stream of its own, behind all that was asked for before.

    A thread for each: it takes over how the starting thread rounds (flushing denormals to zero).

    Args:    call: of what it gives, a tensor is on the device.
    """

    def __init__(self, name: str, device: torch.device, call: Callable[[], T]) -> None:
        self._outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._call = call
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Block until it is over.

        Raises:  whatever the call has raised.
        """
        outcome = self._outcome.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            if isinstance(outcome, torch.Tensor):
                outcome.record_stream(torch.cuda.current_stream(self._stream.device))
        return outcome

    def wait(self) -> None:
        """Block until its thread is over, whatever became of it."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                self._outcome.set_result(self._call())
        except Exception as error:
            self._outcome.set_exception(error)
