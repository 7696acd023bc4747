"""A worker that is slower than the others gets fewer microbatches; the bits are the oracle's."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from invariants import record
from small_job import expected, job

UNEVEN = """
SLOW = os.environ.get("RUBATO_INCARNATION", "").endswith(".2")

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        for x, y in step:
            time.sleep(run.config["pace"] * (3 if SLOW else 1))
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""


def best_possible(microbatches: int, took_ms: list[float]) -> float:
    """The time of a step if whole microbatches are shared out as well as can be."""
    loads = [0.0] * len(took_ms)
    for _ in range(microbatches):
        taker = min(range(len(loads)), key=lambda rank: loads[rank] + took_ms[rank])
        loads[taker] += took_ms[taker]
    return max(loads)


@pytest.mark.parametrize("workers", [2, 3])
def test_microbatches_move_away_from_a_slow_worker(tmp_path: Path, workers: int) -> None:
    config = {"steps": 100, "pace": 0.03}
    with job(tmp_path, UNEVEN, workers=workers, config=config) as run:
        result = run.result()
    told = run.events("rebalanced")
    assert told, run.told()
    first = told[0]
    assert first["message"].startswith("w1.2 takes ")
    assert "of its " in first["message"]
    shares = first["data"]["microbatches"]
    assert shares["w1.2"] < min(count for name, count in shares.items() if name != "w1.2")
    took_ms = first["data"]["milliseconds"]
    slowest = max(count * took_ms[name] for name, count in shares.items())
    assert slowest * 0.9 <= best_possible(sum(shares.values()), list(took_ms.values())), "more than a tenth is lost"
    assert [event["data"]["cause"] for event in run.events("generation.formed")][:2] == ["start", "rebalance"]
    rows = [row["values"]["step_seconds"] for row in run.rows()]
    before, after = statistics.median(rows[5 : first["step"]]), statistics.median(rows[first["step"] + 5 :])
    assert after < 0.8 * before, (before, after)
    assert not run.events("worker.lost")
    assert result == (100, expected(tmp_path, config))


# A microbatch is many short waits, which end only while the process runs: it takes no core, and half of it takes twice
# as long, also on a machine that has no core to spare.
WAITING = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        for x, y in step:
            for _ in range(12):
                time.sleep(run.config["pace"] / 12)
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""
HALVER = """
import json, os, signal, sys, time
pid, running_s, stopped_s = int(sys.argv[1]), 0.0, 0.0
def sleep():
    began = time.monotonic()
    time.sleep(0.02)
    return time.monotonic() - began
try:
    while True:
        os.kill(pid, signal.SIGSTOP)
        stopped_s += sleep()
        os.kill(pid, signal.SIGCONT)
        running_s += sleep()
except ProcessLookupError:
    print(json.dumps({"running_s": running_s, "stopped_s": stopped_s}))
"""
"""A process that stops another one half of the time, until that one ends."""
ENOUGH = 0.9
"""Of the ideal; the rest is exchanges, in which the slow worker is stopped half of the time too."""


@contextmanager
def half_a_core(pid: int) -> Iterator[dict[str, float]]:
    """It runs half of the time, as the seconds tell afterwards."""
    told: dict[str, float] = {}
    with subprocess.Popen([sys.executable, "-c", HALVER, str(pid)], stdout=subprocess.PIPE, text=True) as halver:
        try:
            yield told
        except BaseException:
            halver.kill()
            raise
        told.update(json.loads(halver.communicate(timeout=60)[0]))


def train_with_half_a_core(home: Path, workers: int, config: dict[str, Any]) -> float:
    """One run with a worker at half a core. Returns its throughput, as a share of what is possible."""
    with job(home, WAITING, workers=workers, config=config) as run:
        run.wait_step(3)
        with half_a_core(run.members()[1]["pid"]) as told:
            result = run.result()
    assert 0.3 < told["stopped_s"] / (told["stopped_s"] + told["running_s"]) < 0.7, f"it had no half of a core: {told}"
    moves = run.events("rebalanced")
    assert moves, run.told()
    last = moves[-1]["data"]
    took_ms, shares = last["milliseconds"], last["microbatches"]
    assert took_ms["w1.2"] > 1.3 * max(value for name, value in took_ms.items() if name != "w1.2")
    assert shares["w1.2"] < min(count for name, count in shares.items() if name != "w1.2")
    assert not run.events("worker.lost")
    assert result == (config["steps"], expected(home, {**config, "pace": 0}))
    ideal_s = best_possible(sum(shares.values()), list(took_ms.values())) / 1000
    steps_s = [row["values"]["step_seconds"] for row in run.rows() if row["step"] > moves[0]["step"] + 2]
    throughput = ideal_s / statistics.median(steps_s)
    record(run, f"half a core for one of {workers}", throughput_of_ideal=throughput)
    print(f"one of {workers} workers at half a core: {throughput:.0%} of the ideal throughput, {shares} of {took_ms}")
    return throughput


@pytest.mark.alone
@pytest.mark.parametrize("workers", [2, 3])
def test_half_a_core_costs_little_more_than_half_a_worker(tmp_path: Path, workers: int) -> None:
    config = {"steps": 100, "pace": 0.1}
    # Whoever shares this machine may have taken the cores meanwhile: measured once more then, and only then.
    throughput = train_with_half_a_core(tmp_path, workers, config)
    if throughput < ENOUGH:
        throughput = train_with_half_a_core(tmp_path, workers, config)
    assert throughput >= ENOUGH
