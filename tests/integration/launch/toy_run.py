"""Local runs that train nothing, in threads of a test."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from rubato.launch.control import ask_run
from rubato.launch.local import LocalRun
from rubato.wire.cluster import Outcome
from rubato.wire.spec import parse_spec

TOY = (sys.executable, str(Path(__file__).with_name("toy_child.py")))


def spec(workers: int = 1, **config: Any) -> Any:
    restart = {"backoff": {"initial": 0.1}, "max_restarts": 2}
    limits = {"stop_grace": 5}
    return parse_spec(
        {
            "name": "toy",
            "entrypoint": "toy.py",
            "config": config,
            "workers": {"initial": workers, "max": 4},
            "restart": restart,
            "limits": limits,
        }
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Background:
    """A run in a thread, as another terminal would have it."""

    def __init__(self, run: LocalRun) -> None:
        self.run = run
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self) -> None:
        self.outcome = self.run.run()

    def join(self) -> Outcome:
        self._thread.join(30)
        assert self.outcome is not None
        return self.outcome

    def ask(self, **request: Any) -> dict[str, Any]:
        return ask_run(self.run.folder, request)

    def wait(self, step: int) -> None:
        """Until so many steps are committed: the file says so."""
        metrics = self.run.folder / "metrics.jsonl"
        done = threading.Event()
        while self._thread.is_alive():
            if metrics.exists() and metrics.read_text().count("\n") >= step:
                return
            done.wait(0.01)
        raise AssertionError(f"the run ended first: {self.outcome}")
