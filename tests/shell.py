"""The `rubato` command as a person calls it: in processes of its own, in one home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rubato.home import Home

ROOT = Path(__file__).parents[1]


class Shell:
    """The command in processes of its own, in one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
        self.environment = {**kept, "RUBATO_HOME": str(home.path), "PYTHONPATH": str(ROOT)}

    def __call__(self, *arguments: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rubato.cli", *arguments],
            env=self.environment,
            cwd=self.home.path.parent,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
