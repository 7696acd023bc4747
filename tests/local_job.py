"""Runs of the programs in `tests/programs`, which go slowly until the test has done what it wants to them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rubato import testing

PROGRAMS = Path(__file__).parent / "programs"


class LocalJob(testing.LocalJob):
    """A run that is held back while a file exists; `result` lets it go."""

    def __init__(self, home: Path, program: str, **spec: Any) -> None:
        self.hold = home / "hold"
        self.hold.touch()
        config = {**spec.pop("config", {}), "hold": str(self.hold)}
        super().__init__(home, PROGRAMS / f"{program}.py", config=config, **spec)

    def result(self) -> tuple[int, str]:
        self.hold.unlink(missing_ok=True)
        return super().result()

    def kill_and_wait(self, ranks: Iterable[int]) -> None:
        """SIGKILL these, and block until others train in their places."""
        count = len(self.members())
        killed = self.kill(ranks)
        self.wait(
            lambda: len(self.members()) == count and not {one["pid"] for one in self.members()}.intersection(killed),
            "others in their places",
        )

    def wait_seconds(self, seconds: float) -> None:
        """Let an outage last: nothing happens that could be waited for, but that the run does not end."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, f"{seconds} s")


def oracle(program: str, *, config: dict[str, Any], batch: int, num_microbatches: int) -> str:
    """The digest of one undisturbed worker: `python program.py`."""
    return testing.oracle(PROGRAMS / f"{program}.py", config=config, batch=batch, num_microbatches=num_microbatches)
