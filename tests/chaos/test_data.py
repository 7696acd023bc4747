"""Data under fire: reading ahead, streams, and sizes that divide nothing. The bits are those of one plain worker."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import small_job
import torch
from invariants import record
from local_job import LocalJob, oracle
from redone import check_redone

from rubato.checkpoint.manifest import find_latest
from rubato.checkpoint.stripes import read_state
from rubato.checkpoint.tree import decode
from rubato.data.order import Permutation

STEPS = 60
BATCH, MICROBATCHES = 96, 12


def job(home: Path, *, workers: int, **spec: Any) -> LocalJob:
    return LocalJob(
        home,
        "classifier",
        config={"steps": STEPS, "prefetch": 1, "held_s": 0.5},  # a process that reads takes seconds to start
        batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
        workers={"initial": workers, "min": 1, "max": 4},
        **spec,
    )


def expected() -> str:
    return oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)


def readers(run: LocalJob) -> list[int]:
    """The prefetch processes of all members that have begun to serve."""
    found = []
    for member in run.members():
        for child in psutil.Process(member["pid"]).children():
            if "rubato.data.prefetch_process" in child.cmdline() and has_dataset(child.pid):
                found.append(child.pid)
    return found


def has_dataset(pid: int) -> bool:
    """It closes what it was given when it has read it."""
    try:
        return not any("memfd:rubato" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # one was closed meanwhile
        return False


def test_scaling_and_kills_while_processes_read_ahead(tmp_path: Path) -> None:
    seen: set[int] = set()
    with job(tmp_path, workers=1) as run:
        run.wait_step(3)
        run.scale(2)
        run.wait_workers(2)
        run.wait(lambda: len(readers(run)) == 2, "a prefetch process for each worker")
        seen |= set(readers(run))
        run.wait_step(run.step + 2)
        victim = readers(run)[0]
        os.kill(victim, signal.SIGKILL)
        run.wait(lambda: bool(run.events("prefetch.lost")), "the loss of a prefetch process")
        run.kill([0])
        run.wait(lambda: bool(run.events("worker.lost")), "the loss of a worker")
        assert run.result() == (STEPS, expected())
        assert [row["step"] for row in run.rows()] == list(range(1, STEPS + 1))
    check_redone(run)
    record(run, "SIGKILL of a process that reads ahead, and of a worker")
    assert f"process {victim} was replaced: it ended with SIGKILL" in run.events("prefetch.lost")[0]["message"]
    assert not [pid for pid in seen if psutil.pid_exists(pid)]


def test_a_stopped_prefetch_process_holds_up_nobody(tmp_path: Path) -> None:
    with job(tmp_path, workers=2) as run:
        run.wait(lambda: len(readers(run)) == 2, "a prefetch process for each worker")
        run.wait_step(run.step + 3)
        os.kill(readers(run)[0], signal.SIGSTOP)
        run.wait(lambda: bool(run.events("prefetch.lost")), "the loss of a prefetch process")
        assert run.result() == (STEPS, expected())
    assert not run.events("worker.lost")


@functools.cache
def streamed() -> str:
    return oracle("streaming", config={"steps": STEPS}, batch=30, num_microbatches=7)


def streaming(home: Path, workers: int, **spec: Any) -> LocalJob:
    return LocalJob(
        home,
        "streaming",
        config={"steps": STEPS},
        batch={"global_size": 30, "num_microbatches": 7},
        workers={"initial": workers, "min": 1, "max": 4},
        **spec,
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_has_the_same_bits_whatever_the_worker_count(tmp_path: Path, workers: int) -> None:
    with streaming(tmp_path, workers) as run:
        assert run.result() == (STEPS, streamed())


def test_a_lost_workers_streams_are_read_on_by_heirs(tmp_path: Path) -> None:
    with streaming(tmp_path, 3) as run:
        run.wait_step(3)
        run.kill_and_wait([1])
        run.wait_step(run.step + 2)
        run.scale(4)
        run.wait_workers(4)
        run.wait_step(run.step + 2)
        run.scale(2)
        run.wait_workers(2)
        run.kill([0])
        run.wait(lambda: len(run.events("worker.lost")) == 2, "the second loss")
        assert run.result() == (STEPS, streamed())
    check_redone(run)
    record(run, "SIGKILL of workers whose streams others read on")


def test_a_stream_is_read_on_from_a_checkpoint(tmp_path: Path) -> None:
    with streaming(tmp_path, 2, checkpoint={"every_steps": 5}) as run:
        run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint")
        run.kill(range(2))
        run.wait(lambda: bool(run.events("job.restarting")), "the restart")
        assert run.result() == (STEPS, streamed())
    record(run, "SIGKILL of all, streams are read on from a checkpoint")
    check_redone(run)


LENGTHS = [24 + shard % 5 for shard in range(16)]
# Each sample has an element of `ledger`, whose gradient is what the sample counts in the mean over the batch.
AT_LEAST_ONCE = (
    f"LENGTHS = {LENGTHS}\n"
    """
import json

FIRST = [sum(LENGTHS[:shard]) for shard in range(16)]
STEPS = 40

def read(shard, offset):
    for index in range(offset - offset % 4, LENGTHS[shard]):  # it can begin only where a block does
        yield torch.full((4,), float(index)), torch.zeros(1), FIRST[shard] + index

def train(run):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model.ledger = torch.nn.Parameter(torch.zeros(sum(LENGTHS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stream = rubato.data.ShardedStream(range(16), read, is_exact=False)
    run.prepare(model=model, optimizer=optimizer, dataset=stream)
    for step in run.steps(steps=STEPS):
        for x, y, ids in step:
            time.sleep(0.1 * Path(run.config["home"], "hold").exists())
            step.backward(torch.nn.functional.mse_loss(model(x), y) + model.ledger[ids].mean())
        optimizer.step()
    used = (-model.ledger.detach() / 0.01 * 16).round().int().tolist()
    Path(run.config["home"], f"used-{os.getpid()}.json").write_text(json.dumps(used))
"""
)


def surely_read(run: LocalJob) -> list[int]:
    """How often the streams of `AT_LEAST_ONCE` went over each sample, from where they stand at the end."""
    shards, streams = len(LENGTHS), run.spec.num_microbatches
    assert streams is not None
    counts = [0] * sum(LENGTHS)
    for v, (rounds, turn, offset) in enumerate(positions_at_the_end(run)):
        for number in range(rounds + 1):
            order = Permutation(shards, run.spec.seed, number)
            for at, shard in enumerate(order[place] for place in range(v, shards, streams)):
                is_behind = (number, at) < (rounds, turn)
                read = LENGTHS[shard] if is_behind else offset if (number, at) == (rounds, turn) else 0
                for sample in range(read):
                    counts[sum(LENGTHS[:shard]) + sample] += 1
    return counts


def positions_at_the_end(run: LocalJob) -> list[list[int]]:
    """Round, turn and offset of each stream, from the last checkpoint."""
    found = find_latest(run.run.checkpoints, lambda folder, cause: pytest.fail(cause))
    assert found is not None
    document, tensors = read_state(found[0], found[1].files)
    positions: torch.Tensor = decode(document["state"], tensors)["registered"]["rubato.stream"]["positions"]
    return positions.tolist()


def test_a_source_without_offsets_gives_each_sample_at_least_once(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with small_job.job(tmp_path, AT_LEAST_ONCE, workers=3) as run:
        run.wait_step(3)
        for rank in (2, 1):  # the streams of the one are read on by the other: twice amid one shard
            lost = len(run.events("worker.lost"))
            run.kill([rank])
            run.wait(lambda lost=lost: len(run.events("worker.lost")) > lost, "the loss")
            run.wait_step(run.step + 2)
        hold.unlink()
        assert run.result()[0] == 40
    check_redone(run)
    assert run.events("stream.reopened"), "no shard was read anew"
    used = [json.loads(file.read_text()) for file in tmp_path.glob("used-*.json")]
    assert used
    assert all(one == used[0] for one in used)
    assert sum(used[0]) == 40 * 16
    least = surely_read(run)
    assert sum(least) > 0
    left_out = [sample for sample, count in enumerate(used[0]) if count < least[sample]]
    assert not left_out, f"{left_out} came less often than the streams went over them"


@pytest.mark.parametrize("samples", [23, 61])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_sizes_that_divide_nothing(tmp_path: Path, workers: int, samples: int) -> None:
    config = {"steps": 12, "samples": samples}
    with LocalJob(
        tmp_path,
        "uneven",
        config=config,
        batch={"global_size": 17, "num_microbatches": 5},
        workers={"initial": workers, "min": 1, "max": 4},
    ) as run:
        assert run.result() == (12, uneven(samples))


@functools.cache
def uneven(samples: int) -> str:
    return oracle("uneven", config={"steps": 12, "samples": samples}, batch=17, num_microbatches=5)
