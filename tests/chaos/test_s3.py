"""Whole jobs that lose everything but what lies in a real S3 server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from folder_contract import content
from invariants import record
from local_job import PROGRAMS, LocalJob, oracle
from redone import check_redone
from s3_server import S3Server

from rubato.checkpoint.manifest import find_latest, open_checkpoint
from rubato.checkpoint.storage import open_folder

ROOT = Path(__file__).resolve().parents[2]
STEPS, BATCH, MICROBATCHES = 40, 96, 12

pytestmark = pytest.mark.timeout(900)


def test_a_job_that_loses_all_workers_resumes_from_s3_with_the_same_bits(s3: S3Server, tmp_path: Path) -> None:
    digest = oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)
    told = []
    with LocalJob(
        tmp_path,
        "classifier",
        checkpoint_dir="s3://jobs/all-lost",
        config={"steps": STEPS},
        batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
        workers={"initial": 3, "min": 1, "max": 4},
        checkpoint={"every_steps": 5, "keep_last": 2},
    ) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) >= 3, "three checkpoints")
        run.kill(range(3))
        run.wait(lambda: bool(run.events("job.restarting")), "the restart")
        assert run.result() == (STEPS, digest)
        told = run.events()
    check_redone(run)
    record(run, "SIGKILL of all, checkpoints on S3")
    assert not [event for event in told if event["kind"] in ("checkpoint.failed", "checkpoint.corrupt")]
    again = next(
        event for event in told if event["kind"] == "generation.formed" and event["data"]["cause"] == "restart"
    )
    assert again["step"] > 10, "it did not begin anew"
    kept = open_folder("s3://jobs/all-lost").folders()
    assert len(kept) == 2, "older ones are deleted there, too"
    assert not list((tmp_path / "runs").glob("*/checkpoints")), "nothing was kept on the disk"


def test_a_script_goes_on_from_s3_with_another_worker_count_before(s3: S3Server, tmp_path: Path) -> None:
    """Three workers, then one alone, then two: the bits of one that never stopped."""
    uri = "s3://jobs/counts"

    def job(steps: int, workers: int) -> tuple[int, str]:
        home = tmp_path / f"{steps}"
        home.mkdir()
        with LocalJob(
            home,
            "classifier",
            checkpoint_dir=uri,
            config={"steps": steps},
            batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
            workers={"initial": workers, "min": workers, "max": 4},
        ) as run:
            return run.result()

    def alone(steps: int, *more: str) -> str:
        command = [sys.executable, "classifier.py", f"--config=steps={steps}", f"--batch={BATCH}", *more]
        done = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True)
        return done.stderr

    assert job(10, workers=3)[0] == 10
    told = alone(20, f"--num-microbatches={MICROBATCHES}", "--checkpoint-dir", uri)
    assert "going on from checkpoint 1-10 (step 10)" in told
    result = job(STEPS, workers=2)
    assert result == (STEPS, oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES))
    refused = alone(50, "--num-microbatches=6", "--checkpoint-dir", uri)
    assert "the number of microbatches was 12, now it is 6" in refused


def test_a_flipped_bit_in_s3_is_told_and_the_one_before_is_taken(s3: S3Server, tmp_path: Path) -> None:
    uri = "s3://jobs/flipped"
    command = [sys.executable, "classifier.py", "--config=steps=5", f"--batch={BATCH}", "--checkpoint-dir", uri]
    for _ in range(2):
        done = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    root = open_folder(uri)
    newest, manifest = find_latest(root, lambda folder, cause: pytest.fail(cause)) or pytest.fail("none")
    stripe = next(file.name for file in manifest.files if file.name.startswith("stripe"))
    damaged = bytearray(content(newest, stripe))
    damaged[-1] ^= 1
    newest.write(stripe, [bytes(damaged)])
    passed: list[str] = []
    found = find_latest(root, lambda folder, cause: passed.append(cause))
    assert found is not None
    assert str(found[0]) == f"{uri}/1-5"
    assert "its bytes changed" in passed[0]
    open_checkpoint(found[0])


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_request_the_newest_committed_checkpoint_restores(s3: S3Server, when: str) -> None:
    """The k-th request is never sent, or was answered and nobody knows; for every k."""
    done = subprocess.run(
        [sys.executable, "-B", PROGRAMS / "s3_crashes.py", "s3://jobs/crashes", when],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["code"] for one in told] == [-signal.SIGKILL] * (len(told) - 1) + [0]
    assert len(told) > 15, "the fault hardly ever took effect"
    for one in told:
        found, newest = one["found"], max(one["committed"], default=0)
        assert found["corrupt"] == [], one
        assert found["is_right"], one
        # The manifest may be there although the process died before it could say so.
        assert found["step"] == newest or (one["code"] and found["step"] == newest + 10), one
        assert one["went_on_from"] == [found["step"]], one
        assert one["again"] == [10, 20], one
        (newest,) = one["final"].pop("folders")
        assert newest == ("2-20" if found["folders"] else "1-20"), "what is superfluous, or was left behind, is gone"
        assert one["final"] == {"step": 20, "is_right": True, "corrupt": []}, one
    assert {max(one["committed"], default=0) for one in told} == {0, 10, 20}, "it died in each of them"
