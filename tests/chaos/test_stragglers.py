"""A worker that is slower than the others gets fewer microbatches; the bits are the oracle's."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
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
