"""Runs of the programs in `tests/programs`, which go slowly until the test has done what it wants to them."""

from __future__ import annotations

import atexit
import functools
import os
import time
from pathlib import Path
from typing import Any

from rubato import testing
from rubato.launch.environment import child_environment
from rubato.launch.forkserver import ForkServer

PROGRAMS = Path(__file__).parent / "programs"
NAME_OF_TEST = "PYTEST_CURRENT_TEST"


@functools.cache
def forkserver(programs: Path) -> ForkServer:
    """One for all runs of this process with programs of a folder: its imports take longer than many a test."""
    server = ForkServer(programs, child_environment(os.environ, working_dir=programs))
    atexit.register(server.close)
    return server


class ForkedJob(testing.LocalJob):
    """A run whose training processes are forked from what has imported torch already.

    Args:    program: in a folder that all programs of its kind share.
    """

    present_test = ""
    """The last one that began a run: its further ones find its name no more."""

    def __init__(self, home: Path, program: Path, **spec: Any) -> None:
        told = os.environ.pop(NAME_OF_TEST, "").split(" ")[0]  # else each had an environment of its own
        self.test = ForkedJob.present_test = told or ForkedJob.present_test
        self._forkserver = forkserver(program.parent)
        super().__init__(home, program, forkserver=self._forkserver, **spec)

    def result(self) -> tuple[int, str]:
        assert not self._forkserver.failure, "tests would go on, slowly, with fresh processes"
        return super().result()


class LocalJob(ForkedJob):
    """A run that is held back while a file exists; `result` lets it go."""

    def __init__(self, home: Path, program: str, **spec: Any) -> None:
        self.hold = home / "hold"
        self.hold.touch()
        config = {**spec.pop("config", {}), "hold": str(self.hold)}
        super().__init__(home, PROGRAMS / f"{program}.py", config=config, **spec)

    def result(self) -> tuple[int, str]:
        self.hold.unlink(missing_ok=True)
        return super().result()

    def wait_seconds(self, seconds: float) -> None:
        """Let an outage last: nothing happens that could be waited for, but that the run does not end."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, f"{seconds} s")


def oracle(program: str, *, config: dict[str, Any], batch: int, num_microbatches: int) -> str:
    """The digest of one undisturbed worker: `python program.py`."""
    return testing.oracle(PROGRAMS / f"{program}.py", config=config, batch=batch, num_microbatches=num_microbatches)
