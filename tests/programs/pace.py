"""How fast a test's program goes: slowly while a file exists, so that a test may act between two steps."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import rubato


def brake(hold: str | Path | None, seconds: float) -> None:
    """Wait so long, or until the file is gone."""
    until = time.monotonic() + seconds
    while hold and Path(hold).exists() and time.monotonic() < until:
        time.sleep(0.01)


def pace(run: rubato.Run, step: Any) -> None:
    """For each microbatch: the slower the nearer the end is, so that a test has time on a busy machine too."""
    left = run.config["steps"] - step.index
    brake(run.config.get("hold"), min(1.0, max(run.config.get("held_s", 0.05), 3.0 / left)))
    keep_the_lock(run)


def keep_the_lock(run: rubato.Run) -> None:
    """The first that finds a test's order to do so is in C for so many seconds, and no thread of it runs meanwhile."""
    order = Path(f"{run.config.get('hold')}.lock")
    try:
        seconds = int(order.read_text())
        order.rename(order.with_suffix(".taking"))
    except FileNotFoundError:
        return
    order.with_suffix(".taking").write_text(str(os.getpid()))
    order.with_suffix(".taking").rename(order.with_suffix(".taken"))
    with run.long_phase("a library that keeps the interpreter's lock"):
        ctypes.PyDLL(None).sleep(seconds)


def wait_at_the_door(run: rubato.Run) -> None:
    """Whoever is started while a test has it shut warms up for so long."""
    door = Path(f"{run.config.get('hold')}.door")
    while door.exists():
        time.sleep(0.01)
