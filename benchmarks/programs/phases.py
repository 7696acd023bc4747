"""Where the time of a step goes: the engine's functions are wrapped from outside, in the training process.

Every moment counts to the innermost phase that is open, so the phases of a step add up to it. Only the main thread is
watched: groups are formed and state is written in others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOOKS = (
    ("fetch", "rubato.data.source", "MapSource.read"),
    ("seed", "rubato.engine.step", "seed_all"),
    ("restore", "rubato.engine.step", "Step._restore"),
    ("pack", "rubato.engine.sums", "Sums.take"),
    ("rest of the overlap", "rubato.engine.sums", "Sums.take_begun"),
    ("tree sum", "rubato.engine.tree", "Partials.put"),
    ("send parts", "rubato.engine.reduction", "Reduction._send_parts"),
    ("send sums", "rubato.engine.reduction", "Reduction._send_sum"),
    ("wire", "rubato.engine.pending", "Pending.wait"),
    ("wire", "rubato.engine.pending", "Messages.wait"),
    ("finite", "rubato.engine.reduction", "is_finite"),
    ("deliver", "rubato.engine.sums", "Sums.deliver"),
    ("deliver", "rubato.engine.flat", "FlatLayout.deliver"),
    ("commit", "rubato.engine.session", "Session.commit"),
    ("commit", "rubato.engine.session", "Session.boundary"),
)
"""(phase, module, attribute)."""
REST = "rest"
ORDER = (
    "restore", "fetch", "seed", "forward, backward", "pack", "rest of the overlap", "send parts", "tree sum", "finite",
    "send sums", "wire", "deliver", "optimizer", "commit", REST,
)  # fmt: skip
"""All phases there are, as a step goes through them."""

Moment = tuple[int, int]
"""Nanoseconds of the wall clock, and of the main thread's CPU time."""


class PhaseClock:
    """Time by phase, step by step."""

    def __init__(self) -> None:
        self.laps: list[dict[str, tuple[int, int]]] = []
        """By step, what was spent in each phase."""
        self._thread = threading.get_ident()
        self._open = [REST]
        self._spent: dict[str, list[int]] = {}
        self._at = _now()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside to this phase."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def lap(self) -> None:
        """A step is over."""
        self._count()
        self.laps.append({name: (wall, cpu) for name, (wall, cpu) in self._spent.items()})
        self._spent = {}

    def write(self, folder: str) -> None:
        """One file a process."""
        (Path(folder) / f"phases-{os.getpid()}.json").write_text(json.dumps(self.laps))

    def _count(self) -> None:
        now = _now()
        spent = self._spent.setdefault(self._open[-1], [0, 0])
        spent[0] += now[0] - self._at[0]
        spent[1] += now[1] - self._at[1]
        self._at = now


def phase(clock: PhaseClock | None, name: str) -> contextlib.AbstractContextManager[None]:
    """The phase, where anybody measures."""
    return contextlib.nullcontext() if clock is None else clock.phase(name)


def install(clock: PhaseClock) -> None:
    """Wrap the engine's functions. One that is gone is an error: name its successor in HOOKS."""
    for name, module, attribute in HOOKS:
        owner, function = find(module, attribute)
        setattr(owner, attribute.rpartition(".")[2], _timed(clock, name, function))


def find(module: str, attribute: str) -> tuple[Any, Callable[..., Any]]:
    """Where a hook goes, and what it wraps."""
    owner: Any = importlib.import_module(module)
    *path, last = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, getattr(owner, last)


def _timed(clock: PhaseClock, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with clock.phase(name):
            return function(*args, **kwargs)

    return wrapper


def _now() -> Moment:
    return time.perf_counter_ns(), time.thread_time_ns()
