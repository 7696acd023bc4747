"""The user's train function in a worker of Ray Train: found there, called as it is, its output passed on."""

from __future__ import annotations

import inspect
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import ray
import ray.train
from ray.train.v2._internal.execution import context

from jobs.ray_train.line import Line
from jobs.ray_train.messages import WorkerOutput
from rubato.entrypoint import load_function
from rubato.launch.output import LineSplitter, OutputBudget
from rubato.wire.cluster import LogStream
from rubato.wire.units import utc_timestamp

LOOK_S = 0.25
FLUSH_S = 5.0
_RAY_MARKS = (":actor_name:", ":task_name:", ":job_id:", ":event_summary:", ":info_message:")
_STREAMS: dict[int, LogStream] = {1: "stdout", 2: "stderr"}


def train_function(job_id: str, attempt: int, run: int, entrypoint: str) -> Callable[[dict[str, Any]], Any]:
    """What Ray Train calls in each worker. The user's module is loaded there only."""

    def train(config: dict[str, Any]) -> Any:
        context.logger.setLevel(logging.WARNING)  # it is not named as Ray Train's others, whose level the driver sets
        output = OutputTail(job_id, attempt, run, ray.train.get_context().get_world_rank())
        try:
            target, _, name = entrypoint.partition(":")
            function, _ = load_function(target, name or "train", find_folder(target, sys.path))
            return function(config) if takes_config(function) else function()
        finally:
            output.close()

    return train


def find_folder(target: str, places: list[str]) -> Path:
    """The working folder: Ray puts it on the module search path, and the worker itself into another folder."""
    return next((Path(place) for place in places if place and (Path(place) / target).is_file()), Path())


def takes_config(function: Callable[..., Any]) -> bool:
    """As Ray Train decides: a function that needs one argument gets the config."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.default is inspect.Parameter.empty and one.kind in kinds for one in parameters)


class OutputTail:
    """Passes on what this process writes, from the files that Ray gave it: nothing comes between it and them."""

    def __init__(self, job_id: str, attempt: int, run: int, rank: int) -> None:
        self._rank = rank
        self._node_id = ray.get_runtime_context().get_node_id()
        self._line = Line(job_id, attempt, run, on_stale=lambda: None)
        self._budget = OutputBudget()
        self._files = [(name, file, LineSplitter()) for number, name in _STREAMS.items() if (file := _open(number))]
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass on the rest."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._is_closed.set()
        self._thread.join(FLUSH_S)
        self._line.close(FLUSH_S)

    def _follow(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            self._pass_on(is_last=False)
        self._pass_on(is_last=True)

    def _pass_on(self, *, is_last: bool) -> None:
        now = time.monotonic()
        lines: list[tuple[str, LogStream, str]] = []
        for stream, file, splitter in self._files:
            found = list(splitter.feed(file.read()))
            found += list(splitter.flush()) if is_last else []
            lines += [(utc_timestamp(), stream, text) for text in found if self._is_wanted(text, now)]
        if dropped := self._budget.take_dropped():
            lines.append((utc_timestamp(), "system", f"{dropped} lines were dropped: too much output"))
        if lines:
            self._line.put(WorkerOutput(self._rank, os.getpid(), self._node_id, tuple(lines)))

    def _is_wanted(self, text: str, now: float) -> bool:
        return not text.startswith(_RAY_MARKS) and self._budget.admits(text, now)


def _open(number: int) -> IO[bytes] | None:
    """The file behind a descriptor of this process, from where it ends now; None: it is none that can be read."""
    if not stat.S_ISREG(os.fstat(number).st_mode):
        return None
    file = Path(f"/proc/self/fd/{number}").open("rb")  # noqa: SIM115  (open while the function runs)
    file.seek(0, os.SEEK_END)
    return file
