"""Which of a machine's GPUs a training process sees, where no cluster shares them out.

A worker computes on the first GPU that it sees. Ray shows each of its own alone; here the workers of a run go round
those of the machine. This process must not load torch, which would know them, so they are counted by other means.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
LIST_COMMAND = ("nvidia-smi", "-L")
LIST_S = 10.0
"""The driver takes seconds to wake where no process keeps it loaded."""
_DEVICE_FOLDER = Path("/dev")


def share_of_slot(slot: int, devices: tuple[str, ...], each: int = 1) -> dict[str, str]:
    """What the environment of the worker in a slot has to say.

    With fewer GPUs than the workers take together they share them, as evenly as can be.

    Args:
        slot: counted from 0; that of a worker that ended is given to another.
        devices: the GPUs of all workers, as CUDA names them.
        each: so many a worker, >= 1.
    Returns: nothing where there is nothing to choose from.
    """
    if len(devices) < 2:
        return {}
    first = slot * each
    chosen = [devices[(first + index) % len(devices)] for index in range(min(each, len(devices)))]
    return {VISIBLE_VARIABLE: ",".join(chosen)}


def visible_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that a process with this environment sees, by number or by what the user calls them.

    As in CUDA, what follows a name that cannot be one (`-1`) does not count, and an empty list hides all.
    """
    if (told := environment.get(VISIBLE_VARIABLE)) is not None:
        names = [name.strip() for name in told.split(",")]
        return tuple(names[: next((index for index, name in enumerate(names) if not _is_device(name)), len(names))])
    return tuple(map(str, range(count_devices())))


def count_devices() -> int:
    """GPUs of this machine, as the driver lists them; else as there are device files, whose numbers may have gaps."""
    try:
        listed = subprocess.run(LIST_COMMAND, capture_output=True, text=True, check=True, timeout=LIST_S).stdout
    except (OSError, subprocess.SubprocessError):
        return sum(path.name.removeprefix("nvidia").isdigit() for path in _DEVICE_FOLDER.glob("nvidia*"))
    return sum(line.startswith("GPU ") for line in listed.splitlines())  # parts of one (MIG) are indented


def _is_device(name: str) -> bool:
    return name.isdigit() or name.startswith(("GPU-", "MIG-"))
