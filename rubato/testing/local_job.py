"""A run of real training processes that a test or a benchmark scales and kills at chosen steps.

with LocalJob(tmp_path, Path("train.py"), workers={"initial": 2, "max": 4}) as job:
    job.wait_step(10)
    job.kill([0])
    step, digest = job.result()
assert digest == oracle(Path("train.py"), ...)
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rubato.launch.forkserver import ForkServer
from rubato.launch.local import LocalRun
from rubato.wire.cluster import Outcome
from rubato.wire.spec import parse_spec
from rubato.wire.storage import parse_storage

PATIENCE_S = 120.0


class LocalJob:
    """`rubato run` in a thread, with a view of its workers.

    Args:
        home: where the run keeps its files.
        program: a file with a function `train(run)`.
        checkpoint_dir: folder or URI of its checkpoints; default: one in the run's own folder.
        forkserver: forks the training processes, where it has their folder and environment; default: one for this run.
        patience_s: how long anything that is waited for may take, the end of the job included.
        spec: fields of the job spec.
    """

    def __init__(
        self,
        home: Path,
        program: Path,
        *,
        checkpoint_dir: str | None = None,
        forkserver: ForkServer | None = None,
        patience_s: float = PATIENCE_S,
        **spec: Any,
    ) -> None:
        self._patience_s = patience_s
        self.spec = parse_spec(
            {
                "name": "job",
                "entrypoint": f"{program.name}:train",
                "restart": {"backoff": {"initial": 0.1}},
                **spec,
            }
        )
        self.output = io.StringIO()
        storage = parse_storage(checkpoint_dir) if checkpoint_dir is not None else None
        self.run = LocalRun(self.spec, program.parent, storage, home, progress=self.output, forkserver=forkserver)
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._lead, name="local-job")

    def _lead(self) -> None:
        try:
            self.outcome = self.run.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> LocalJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.run.answer({"verb": "cancel", "force": True})
        self._thread.join(30)
        assert not self._thread.is_alive()

    # --- what is seen -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the run says of itself."""
        return self.run.answer({"verb": "status"})

    @property
    def step(self) -> int:
        """Committed steps."""
        observed = self.status()["observed"]
        return observed["step"] if observed else 0

    def members(self) -> list[dict[str, Any]]:
        """Training workers, by rank."""
        return [one for one in self.status()["workers"] if one["rank"] is not None]

    def rows(self) -> list[dict[str, Any]]:
        """Metric rows so far."""
        return self._lines("metrics")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events so far, of one kind or all."""
        return [event for event in self._lines("events") if kind in (None, event["kind"])]

    def formed(self) -> list[dict[str, Any]]:
        """Generations so far, without those that moved microbatches away from a slow worker: any may come."""
        return [event for event in self.events("generation.formed") if event["data"]["cause"] != "rebalance"]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.run.folder / f"{name}.jsonl"
        # The last line may be half written.
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    # --- what is done -------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Block until the condition holds; fails when the run ends before, or patience does."""
        deadline = time.monotonic() + self._patience_s
        while not condition():
            assert self._thread.is_alive(), (
                f"the run ended while waiting for {what}: {self.outcome or self.error}\n{self.told()}"
            )
            assert time.monotonic() < deadline, f"no {what} within {self._patience_s:g} s\n{self.told()}"
            time.sleep(0.005)

    def wait_step(self, step: int) -> None:
        """Block until so many steps are committed."""
        self.wait(lambda: self.step >= step, f"step {step}")

    def wait_workers(self, count: int) -> None:
        """Block until exactly so many train."""
        self.wait(
            lambda: self.status()["observed"]["workers"] == count and len(self.members()) == count, f"{count} workers"
        )

    def scale(self, workers: int) -> None:
        """Wish for another number of workers."""
        self.run.answer({"verb": "scale", "workers": workers})

    def kill(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> list[int]:
        """Send a signal to the training processes of these ranks; fails if one is gone already."""
        pids = [self.members()[rank]["pid"] for rank in ranks]
        for pid in pids:
            os.kill(pid, number)
        return pids

    def kill_and_wait(self, ranks: Iterable[int]) -> None:
        """SIGKILL these, and block until others train in their places."""
        count = len(self.members())
        killed = self.kill(ranks)
        self.wait(
            lambda: len(self.members()) == count and not {one["pid"] for one in self.members()}.intersection(killed),
            "others in their places",
        )

    def wait_for_end(self) -> Outcome:
        """Block until the run is over, however it ends."""
        self._thread.join(self._patience_s)
        assert self.outcome is not None, f"the run has not ended: {self.error}\n{self.told()}"
        return self.outcome

    def result(self) -> tuple[int, str]:
        """Step and digest at the end of the job; waits for it."""
        self.wait_for_end()
        assert self.outcome is not None
        assert self.outcome.result is not None, f"{self.outcome}\n{self.told()}"
        return self.outcome.result.step, self.outcome.result.digest

    def told(self) -> str:
        """The progress lines."""
        return self.output.getvalue()


def oracle(
    program: Path, *, config: dict[str, Any], batch: int, num_microbatches: int, timeout_s: float = 600.0
) -> str:
    """The digest of one undisturbed worker: `python program.py`."""
    arguments = [f"--config={key}={json.dumps(value)}" for key, value in config.items()]
    command = [
        sys.executable,
        str(program),
        *arguments,
        f"--batch={batch}",
        f"--num-microbatches={num_microbatches}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stderr.strip().rsplit(" ", 1)[-1]
