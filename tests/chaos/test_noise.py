"""The noise of the gradients, and rates that go by it, have the same bits whatever happens to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faulty_run import SEED
from invariants import values_by_step
from small_job import PLAIN, job, live_through

from rubato.testing import LocalJob

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps(epochs=10):
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"noise_every": 2},
    "lr_scaling": {"rule": "adascale", "base_size": 4, "warmup_steps": 20},
}


def noise(run: LocalJob) -> list[tuple[Any, Any]]:
    """By step."""
    return [(row["values"].get("noise_scale"), row["values"]["lr_factor"]) for row in run.rows()]


def test_it_is_the_same_whatever_the_workers(tmp_path: Path) -> None:
    for name in ("alone", "many"):
        (tmp_path / name).mkdir()
    with job(tmp_path / "alone", PROGRAM, workers=1, **SPEC) as run:
        digest, expected = run.result(), noise(run)
    home = tmp_path / "many"
    with job(home, PROGRAM, workers=1, config={"pace": 0.4}, checkpoint={"every_steps": 5}, **SPEC) as run:
        assert live_through(run, home, workers=3, lost=[SEED % 3], how="noise and rates by it") == digest
        assert noise(run) == expected
    known = [scale for scale, _ in expected if scale is not None]
    assert len(known) > 10
    assert len({factor for _, factor in expected}) > 10


def rule(name: str, steps: int) -> dict[str, Any]:
    """Of a batch of 16: `linear` makes 4 of it, `sqrt` 2."""
    return {"lr_scaling": {"rule": name, "base_size": 4, "warmup_steps": steps}}


def test_a_warmup_begins_with_the_checkpoint_that_a_rule_is_added_to(tmp_path: Path) -> None:
    """It goes on after the loss of all and with a joiner; another rule begins from the factor of then."""

    def part(name: str, **spec: Any) -> Any:
        (home := tmp_path / name).mkdir()
        kept = {"checkpoint_dir": str(tmp_path / "kept"), "checkpoint": {"every_steps": 3}}
        return job(home, PLAIN, config={"steps": 60, **spec.pop("config", {})}, **kept, **spec)

    def pause(run: LocalJob) -> None:
        run.run.answer({"verb": "pause"})
        run.wait_for_end()

    slow = {"pace": 0.1}
    with part("without", config=slow) as run:
        run.wait_step(4)
        pause(run)
    with part("linear", config=slow, **rule("linear", 30)) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([0, 1])
        run.wait(lambda: len(run.formed()) == 2, "a restart")
        run.scale(3)
        run.wait_workers(3)
        run.wait_step(run.step + 2)
        pause(run)
        linear = factors(run)
    with part("sqrt", **rule("sqrt", 6)) as run:
        run.result()
        root = factors(run)
    began, went_on = min(linear), min(root)
    assert 4 <= began < went_on < 60

    def grown(step: int) -> float:
        return 1.0 + 3.0 * min(1.0, (step - began) / 30)

    assert linear == {step: pytest.approx(grown(step)) for step in range(began, went_on)}
    share = {step: min(1.0, (step - went_on) / 6) for step in range(went_on, 60)}
    assert root == {step: pytest.approx((1 - of) * grown(went_on) + of * 2.0) for step, of in share.items()}


def factors(run: LocalJob) -> dict[int, float]:
    """By the index of the step."""
    return {step - 1: values["lr_factor"] for step, values in values_by_step(run).items()}
