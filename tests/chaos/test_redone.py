"""What a loss makes the others compute again: counted by the program itself, beside what the run tells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from invariants import record
from redone import check_redone
from small_job import expected, job

COUNTING = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    home = Path(run.config["home"])
    with (home / "computed").open("a", buffering=1) as ledger:
        for step in run.steps():
            for x, y in step:
                ledger.write(f"{step.index} {step.microbatch}\\n")
                if step.index == 5 and (home / "hold").exists():
                    (home / f"{os.getpid()}-is-in-{step.microbatch}").touch()
                    if step.microbatch == 6:
                        until(home / "go")
                time.sleep(run.config.get("pace", 0.0))
                step.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""
STEPS, MICROBATCHES = 10, 8


def computed(home: Path) -> Counter[tuple[int, int]]:
    """How often each (step, microbatch) was begun; the oracle is to write anew."""
    ledger = home / "computed"
    lines = ledger.read_text().splitlines()
    ledger.unlink()
    found: Counter[tuple[int, int]] = Counter()
    for line in lines:
        step, microbatch = map(int, line.split())
        found[step, microbatch] += 1
    assert set(found) == {(step, leaf) for step in range(STEPS) for leaf in range(MICROBATCHES)}
    return found


@pytest.mark.parametrize("killed", [1, 2])
def test_a_loss_costs_the_share_of_the_lost_and_nothing_else(tmp_path: Path, killed: int) -> None:
    """While one worker is held in a microbatch, the others have computed all of theirs; some of them are killed."""
    (tmp_path / "hold").touch()
    with job(tmp_path, COUNTING, workers=4, config={"steps": STEPS}) as run:
        run.wait(lambda: len(list(tmp_path.glob("*-is-in-*"))) == 7, "all microbatches but the last")
        pids = [one["pid"] for one in run.members()]
        held = {pid for pid in pids if (tmp_path / f"{pid}-is-in-6").exists()}
        assert len(held) == 1
        chosen = [rank for rank, pid in enumerate(pids) if pid not in held][:killed]
        shares = [int(path.name.rpartition("-")[2]) for rank in chosen for path in tmp_path.glob(f"{pids[rank]}-*")]
        run.kill(chosen)
        run.wait(lambda: len(run.events("worker.lost")) == killed, "the loss")
        (tmp_path / "hold").unlink()
        (tmp_path / "go").touch()
        result = run.result()
    counts = computed(tmp_path)
    again = sorted(place for place, count in counts.items() if count > 1)
    assert again == sorted((5, leaf) for leaf in shares)
    assert max(counts.values()) == 2
    (recovery,) = [event for event in run.formed() if event["data"]["cause"] == "recovery"]
    # It also counts the last microbatch, where nobody had begun it by then.
    assert len(shares) == 2 * killed
    assert recovery["data"]["redone_microbatches"] in (len(shares), len(shares) + 1)
    check_redone(run)
    assert result == (STEPS, expected(tmp_path, {"steps": STEPS}))
    record(run, f"SIGKILL of {killed} of 4 while one is in its last microbatch")


def test_a_leave_costs_nothing(tmp_path: Path) -> None:
    config = {"steps": STEPS, "pace": 0.1}
    with job(tmp_path, COUNTING, workers=4, config=config) as run:
        run.wait_step(2)
        run.scale(2)
        result = run.result()
    assert set(computed(tmp_path).values()) == {1}
    assert "scale_down" in [event["data"]["cause"] for event in run.formed()]
    check_redone(run)
    assert result == (STEPS, expected(tmp_path, {"steps": STEPS}))
    record(run, "two of four leave")
