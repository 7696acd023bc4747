"""The progress word: what a training process does right now, in memory that its supervisor can read at any time.

The process writes it at every change of stage with plain stores, no system call and no lock. So it still tells where a
process hangs whose interpreter lock is held in C, or that was stopped. Words of 64 bits:

    0        version      odd while the writer is in it (one writer; a reader tries again)
    1 .. 5   generation, step, stage, microbatch (-1: none), since when (ns of the monotonic clock, one on a host)
    6        pulse        ns; by a thread of the process once a second: its interpreter runs
    8 ..     how often each stage took how long: a row of BUCKETS counts a stage, bucket b up to 2^b units of 2^20 ns
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import time
from dataclasses import dataclass

STAGES = (
    *("setup", "standby", "prefetch", "fetch", "first_batch", "compute", "exchange", "update"),
    *("enter", "sync", "evaluate", "checkpoint", "long_phase", "done"),
)
"""What a main thread may do. `prefetch`: waits for a process that reads ahead; `fetch`: reads a microbatch itself;
`first_batch`: the first microbatch of its size (compilation, caches); `update`: all between a reduction and the next
microbatch; `enter`: a generation; `sync`: the state goes from members to joiners."""
BUCKETS = 24
"""The last one begins after two hours."""
ENOUGH = 5
"""Durations of a stage before they say anything about the next one."""
QUANTILE = 0.99
_VERSION, _GENERATION, _STEP, _STAGE, _MICROBATCH, _SINCE, _PULSE, _COUNTS = 0, 1, 2, 3, 4, 5, 6, 8
_UNIT_BITS = 20
_TRIES = 100
SIZE_BYTES = 8 * (_COUNTS + len(STAGES) * BUCKETS)


@dataclass(frozen=True)
class Progress:
    """What the word said."""

    generation: int
    step: int
    stage: str
    microbatch: int | None
    since_ns: int
    pulse_ns: int
    usual: dict[str, float]
    """A high quantile of the durations of each stage in seconds, where there are enough of them."""


class ProgressWord:
    """One word; both ends use this class."""

    def __init__(self, fd: int = -1) -> None:
        """Map the memory behind a descriptor; without one the word is this process's own."""
        self._map = mmap.mmap(fd, SIZE_BYTES)
        self._words = memoryview(self._map).cast("q")
        self._since_ns = 0

    # --- the training process -----------------------------------------------------------------------------------------

    def write(self, stage: str, step: int, generation: int, microbatch: int | None = None) -> None:
        """The main thread begins something else; how long the last stage took is counted."""
        words, now = self._words, time.monotonic_ns()
        if self._since_ns:
            bucket = min(((now - self._since_ns) >> _UNIT_BITS).bit_length(), BUCKETS - 1)
            words[_COUNTS + words[_STAGE] * BUCKETS + bucket] += 1
        self._since_ns = now
        words[_VERSION] += 1
        words[_GENERATION], words[_STEP], words[_STAGE] = generation, step, STAGES.index(stage)
        words[_MICROBATCH], words[_SINCE] = -1 if microbatch is None else microbatch, now
        words[_VERSION] += 1

    def beat(self) -> None:
        """The interpreter runs."""
        self._words[_PULSE] = time.monotonic_ns()

    # --- its supervisor -----------------------------------------------------------------------------------------------

    def read(self) -> Progress | None:
        """What the process does; None: it has not said anything yet."""
        fields = self._fields()
        if not fields[_SINCE] or not fields[_PULSE]:
            return None
        stage, leaf = STAGES[fields[_STAGE] % len(STAGES)], fields[_MICROBATCH]
        rows = (_COUNTS + index * BUCKETS for index in range(len(STAGES)))
        usual = {name: usual_s(list(self._words[at : at + BUCKETS])) for name, at in zip(STAGES, rows, strict=True)}
        return Progress(
            generation=fields[_GENERATION],
            step=fields[_STEP],
            stage=stage,
            microbatch=None if leaf < 0 else leaf,
            since_ns=fields[_SINCE],
            pulse_ns=fields[_PULSE],
            usual={name: seconds for name, seconds in usual.items() if seconds is not None},
        )

    def _fields(self) -> list[int]:
        """The fields of one write. Of a process that was stopped in the middle of one: what is there."""
        fields = list(self._words[:_COUNTS])
        for _ in range(_TRIES):
            if not fields[_VERSION] % 2 and self._words[_VERSION] == fields[_VERSION]:
                break
            fields = list(self._words[:_COUNTS])
        return fields

    def close(self) -> None:
        """Let the memory go."""
        self._words.release()
        self._map.close()


def usual_s(counts: list[int]) -> float | None:
    """The high quantile of counted durations, rounded up to the end of its bucket; None: too few of them."""
    total = sum(counts)
    if total < ENOUGH:
        return None
    reached = itertools.accumulate(counts)
    bucket = next(index for index, count in enumerate(reached) if count >= QUANTILE * total)
    return float((1 << (bucket + _UNIT_BITS)) / 1e9)


def shared_memory() -> int:
    """A descriptor of memory for one word, which a child process can inherit."""
    fd = anonymous_memory("rubato-progress")
    os.ftruncate(fd, SIZE_BYTES)
    return fd


def anonymous_memory(name: str) -> int:
    """A descriptor of memory that has no place in the file system; empty."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
