"""On what, and with which versions, figures were measured."""

from __future__ import annotations

import os
import platform
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
