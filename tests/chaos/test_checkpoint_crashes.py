"""Checkpoints under faults that a system call meets: killed at every one of them, full disk, input and output errors.

`strace` kills a real process when it enters the k-th call of a kind, for every k until the process gets through.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_job import LocalJob, oracle
from small_disk import fill

from rubato.checkpoint.manifest import MANIFEST_NAME, checkpoint_folders, find_latest, open_checkpoint
from rubato.checkpoint.storage import LocalFolder
from rubato.launch.archive import next_attempt
from tests.programs import commits

ROOT = Path(__file__).resolve().parents[2]
STRACE = shutil.which("strace")
CALLS = ("write", "fsync", "rename", "link", "mkdir", "unlink", "unlinkat", "rmdir")
"""Every kind of call by which a checkpoint is written, committed or cleared away."""

pytestmark = pytest.mark.timeout(600)


def can_trace() -> bool:
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True).returncode == 0


traced = pytest.mark.skipif(not can_trace(), reason="needs strace (apt-get install strace) and the right to trace")


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.programs.commits"])


def run_traced(root: Path, call: str, fault: str, k: int) -> tuple[int, list[str], bool]:
    """Return code of a process that saves, its lines, and whether the fault took effect."""
    assert STRACE is not None
    log, told = root.with_suffix(".trace"), root.with_suffix(".told")
    job = FORKS.Process(target=commits.run_traced, args=(str(root), str(told)))
    job.start()
    assert job.pid is not None
    options = ["-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={k}"]
    try:
        await_status(job.pid, "State:\tT")
        with subprocess.Popen([STRACE, *options, "-p", str(job.pid)], stderr=subprocess.DEVNULL):
            await_status(job.pid, r"TracerPid:\t[1-9]")
            os.kill(job.pid, signal.SIGCONT)
            job.join()
    finally:
        job.kill()  # one that stands still would hold up the end of the tests
    hit = "INJECTED" in log.read_text() or "killed by SIGKILL" in log.read_text()
    assert job.exitcode is not None
    return job.exitcode, told.read_text().splitlines() if told.exists() else [], hit


def await_status(pid: int, pattern: str) -> None:
    """Until the kernel says so of this process; a minute at most."""
    ends = time.monotonic() + 60
    while not re.search(pattern, Path(f"/proc/{pid}/status").read_text()):
        assert time.monotonic() < ends, f"{pid} never had {pattern}"
        time.sleep(0.001)


def steps_of(lines: list[str], word: str) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(rf"{word} (\d+)", line))]


def newest_of(root: Path) -> int:
    """The step of the newest checkpoint, 0: none. All that are called whole are, and hold what was saved."""
    whole = [folder for folder in checkpoint_folders(LocalFolder(root)) if folder.exists(MANIFEST_NAME)]
    found = [(folder, open_checkpoint(folder)) for folder in whole]
    assert all(commits.is_right(*one) for one in found)
    return found[-1][1].step if found else 0


def check_newest(root: Path, told: list[int], *, in_flight: bool) -> None:
    """I4: the newest committed checkpoint can be restored."""
    step, newest = newest_of(root), max(told, default=0)
    # The manifest may be there although the process died before it could say so.
    assert step == newest or (in_flight and step == newest + 10), (step, told)


def go_on(root: Path, step: int) -> None:
    """What a crash left does not stand in the way of the next run, and is cleared away by it."""
    attempt = next_attempt(LocalFolder(root))
    lines: list[str] = []
    commits.Job(root, say=lines.append).run()
    assert lines == [f"found {step}", "committed 10", "committed 20", "committed 30"]
    assert newest_of(root) == 30
    assert [path.name for path in root.iterdir()] == [f"{attempt}-30"]


@traced
@pytest.mark.parametrize("call", [pytest.param(one, marks=pytest.mark.short if one == "link" else ()) for one in CALLS])
def test_killed_at_every_call_the_newest_committed_checkpoint_restores(tmp_path: Path, call: str) -> None:
    k = 0
    while True:
        k += 1
        root = tmp_path / f"{call}-{k}"
        code, lines, hit = run_traced(root, call, "signal=KILL", k)
        check_newest(root, steps_of(lines, "committed"), in_flight=hit)
        if not hit:
            assert code == 0
            assert steps_of(lines, "committed") == [10, 20, 30]
            assert [path.name for path in root.iterdir()] == ["1-30"], "what is superfluous is deleted"
            break
        assert code != 0
        go_on(root, newest_of(root))
    assert k > 2, "the fault never took effect"


@traced
@pytest.mark.parametrize(("call", "error"), [("write", "ENOSPC"), ("write", "EIO"), ("fsync", "EIO"), ("link", "EIO")])
def test_an_error_costs_the_checkpoint_it_meets_and_no_other(tmp_path: Path, call: str, error: str) -> None:
    k, failed = 0, set()
    while True:
        k += 1
        root = tmp_path / f"{call}-{k}"
        _, lines, hit = run_traced(root, call, f"error={error}", k)
        if not hit:
            break
        if not lines or (lines[-1] not in ("committed 30",) and not lines[-1].startswith("failed 30")):
            continue  # it was standard output itself that failed
        committed, lost = steps_of(lines, "committed"), steps_of(lines, "failed")
        assert len(lost) <= 1
        failed |= set(lost)
        # An error may come after the manifest was linked: then the checkpoint is there although it was called failed.
        check_newest(root, committed, in_flight=bool(lost))
    assert failed == {10, 20, 30}, "every checkpoint met the error once"


LATEST = """
import sys
from rubato.checkpoint.manifest import find_latest
from rubato.checkpoint.storage import open_folder

found = find_latest(open_folder(sys.argv[1]), lambda folder, cause: print(cause))
print("found", found[0].name)
"""


@traced
@pytest.mark.parametrize("name", ["manifest", "state", "stripe-00001"])
def test_a_checkpoint_that_the_disk_does_not_read_is_passed_over_and_said(tmp_path: Path, name: str) -> None:
    assert STRACE is not None
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    root, log = tmp_path / "kept", tmp_path / "trace"
    commits.Job(root, kept=2).run()
    (file,) = (root / "1-30").glob(f"{name}*")
    fault = ["-P", file, "-e", "trace=read", "-e", "inject=read:error=EIO"]
    looked = subprocess.run(
        [STRACE, "-f", "-o", log, *fault, sys.executable, "-B", "-c", LATEST, root],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "INJECTED" in log.read_text(), "the fault never took effect"
    cause, found = looked.stdout.splitlines()
    assert (file.name in cause, "1-30" in cause, "Input/output error" in cause) == (True, True, True), cause
    assert found == "found 1-20"


def test_a_full_disk_skips_checkpoints_and_never_fails_the_job(tmp_path: Path, small_disk: Path) -> None:
    steps, batch, microbatches = 30, 96, 12
    with LocalJob(
        tmp_path,
        "classifier",
        checkpoint_dir=str(small_disk / "kept"),
        config={"steps": steps},
        batch={"global_size": batch, "num_microbatches": microbatches},
        workers={"initial": 2, "min": 1, "max": 4},
        checkpoint={"every_steps": 3, "keep_last": 1},
    ) as run:
        run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint")
        ballast = fill(small_disk)
        run.wait(lambda: bool(run.events("checkpoint.failed")), "a checkpoint that does not fit")
        saved = len(run.events("checkpoint.committed"))
        saved_step = run.events("checkpoint.committed")[-1]["step"]
        found = find_latest(LocalFolder(small_disk / "kept"), lambda folder, cause: None)
        assert found is not None
        assert found[1].step == saved_step
        ballast.unlink()
        run.wait(lambda: len(run.events("checkpoint.committed")) > saved, "a checkpoint after there was room again")
        result = run.result()
        cause = run.events("checkpoint.failed")[0]["message"]
    assert "No space left on device; make room" in cause
    assert result == (steps, oracle("classifier", config={"steps": steps}, batch=batch, num_microbatches=microbatches))
    found = find_latest(LocalFolder(small_disk / "kept"), lambda folder, cause: None)
    assert found is not None
    assert found[1].step == steps
