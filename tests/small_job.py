"""Small training programs that a test writes itself, and the jobs that run them."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty_run import causes
from invariants import Undisturbed, check, check_run, values_by_step
from local_job import ForkedJob

from rubato import testing

HEAD = """
import os, time, torch, rubato
from pathlib import Path

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
DATA = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))

def build(run):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer

def until(path):
    while not Path(path).exists():
        time.sleep(0.01)

def pace(run):
    if not (Path(run.config["home"]) / "fast").exists():
        time.sleep(run.config.get("pace", 0.0))

def fit(run, step, model, optimizer):
    for x, y in step:
        pace(run)
        step.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
"""
PLAIN = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""


def with_each_step(body: str) -> str:
    """The plain program, which does something more behind the update of each step."""
    head, fit, tail = PLAIN.partition("fit(run, step, model, optimizer)\n")
    return head + fit + textwrap.indent(textwrap.dedent(body), 8 * " ") + tail


_numbers = itertools.count()


@functools.cache
def _folder() -> Path:
    """Of all programs of this process: what serves forks does so for one folder."""
    folder = Path(tempfile.mkdtemp(prefix="rubato-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write(home: Path, body: str) -> Path:
    """The program, as a file."""
    program = home / "program.py"
    program.write_text(textwrap.dedent(HEAD + body))
    return program


def forked(home: Path, program: Path, **spec: Any) -> ForkedJob:
    """A run of such a program, from a copy where what serves forks does so."""
    return ForkedJob(home, Path(shutil.copy(program, _folder() / f"program_{next(_numbers)}.py")), **spec)


def job(
    home: Path,
    body: str,
    *,
    workers: int = 2,
    config: dict[str, Any] | None = None,
    batch: dict[str, Any] | None = None,
    **spec: Any,
) -> Any:
    return forked(
        home,
        write(home, body),
        config={"steps": 6, "home": str(home), **(config or {})},
        batch={"global_size": 16, "num_microbatches": 8, **(batch or {})},
        workers={"initial": workers, "min": 1, "max": 4},
        **spec,
    )


def hurry(home: Path) -> None:
    """Let a run that has a pace go on without."""
    (home / "fast").touch()


def live_through(run: Any, home: Path, *, workers: int, lost: Sequence[int], how: str) -> Any:
    """One worker becomes many, loses these ranks one after the other, and goes down to two; then the run may hurry.

    Args:    how: what is special about the run, for the fault table.
    Returns: its result.
    """
    run.wait_step(1)
    run.scale(workers)
    run.wait_workers(workers)
    for rank in lost:
        run.wait_step(run.step + 2)
        run.kill_and_wait([rank])
        run.wait_workers(workers)
    run.scale(2)
    run.wait_workers(2)
    run.wait_step(run.step + 2)
    if run.spec.local_updates.is_led:
        assert [one["microbatches"] for one in run.members()] == [None, None], "no share of theirs is in microbatches"
    hurry(home)
    result = run.result()
    assert {"scale_up", "recovery", "replace", "scale_down"} <= set(causes(run)), run.told()
    check_run(run, fault=f"1 -> {workers} -> 2 and {len(lost)} SIGKILL, {how}")
    return result


def check_learns_as_alone(
    folder: Path, body: str, spec: dict[str, Any], *, how: str, lost: Sequence[int] = (2, 0), rel: float = 1e-3
) -> None:
    """Four workers that come, go and are lost, the first one too, have the losses of one to which nothing happens.

    Args:    rel: by how much they may differ, as what travels is rounded.
    """
    for name in ("alone", "many"):
        (folder / name).mkdir()
    with job(folder / "alone", body, workers=1, **spec) as run:
        run.result()
        losses = [row["values"]["loss"] for row in run.rows()]
    assert losses[-1] < losses[0] / 2
    home = folder / "many"
    with job(home, body, workers=1, config={"pace": 0.15}, checkpoint={"every_steps": 3}, **spec) as run:
        live_through(run, home, workers=4, lost=lost, how=how)
        assert [row["values"]["loss"] for row in run.rows()] == pytest.approx(losses, rel=rel)


def alone(home: Path, config: dict[str, Any]) -> Undisturbed:
    """One worker that nothing happens to, with the program of `job` and the same configuration."""
    with tempfile.TemporaryDirectory() as scratch:
        hurry(home)
        run = forked(
            Path(scratch),
            home / "program.py",
            config={"steps": 6, "home": str(home), **config},
            batch={"global_size": 16, "num_microbatches": 8},
            workers={"initial": 1, "min": 1},
        )
        with run:
            step, digest = run.result()
            assert len(run.events("generation.formed")) == 1
            return Undisturbed(step, digest, values_by_step(run))


def check_alone(run: Any, home: Path, config: dict[str, Any], **more: Any) -> None:
    """All of `invariants.check`, beside one undisturbed worker; the run need no longer be slow."""
    hurry(home)
    run.result()
    check(run, alone(home, config), **more)


def expected(home: Path, config: dict[str, Any]) -> str:
    """The digest of one undisturbed worker with the program of `job`, and the same configuration."""
    return testing.oracle(
        home / "program.py", config={"steps": 6, "home": str(home), **config}, batch=16, num_microbatches=8
    )
