"""On what, and with which versions, figures were measured."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine(load: float) -> str:
    """Processor, cores, and the load as it was found before the measurement."""
    return f"{processor()}, {os.cpu_count()} cores, load {load:.1f}"


def processor() -> str:
    """Its name, where the system tells."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fresh_memory_seconds(size: int = 2**31) -> float:
    """Seconds a GiB to write memory that was not in use: a virtual machine may have to ask its host for it.

    Args:    size: bytes that are tried.
    """
    with mmap.mmap(-1, size) as memory:
        place = ctypes.c_char.from_buffer(memory)
        began = time.perf_counter()
        ctypes.memset(ctypes.addressof(place), 1, size)
        taken = time.perf_counter() - began
        del place
    return taken * 2**30 / size


def versions(packages: Sequence[str]) -> str:
    """Python and these packages; those that are not installed are left out."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def today() -> str:
    """The date, in UTC."""
    return datetime.now(UTC).date().isoformat()
