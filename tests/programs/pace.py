"""How fast a test's program goes: slowly while a file exists, so that a test may act between two steps."""

import time
from pathlib import Path

import rubato


def pace(run: rubato.Run) -> None:
    hold = run.config.get("hold")
    if hold and Path(hold).exists():
        time.sleep(run.config.get("held_s", 0.05))
