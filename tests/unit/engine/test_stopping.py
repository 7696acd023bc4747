"""`run.stop` of one worker; that several agree is tested with real processes (`tests/chaos/test_stop.py`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun, loss_of, prepared

from rubato.engine.stopping import resume_stopped
from rubato.errors import ModelError
from rubato.run import Run
from rubato.wire import worker as wire

pytestmark = pytest.mark.usefixtures("generators")


def train(run: Run, stop_at: int | None, steps: int = 6, behind: Callable[[Any], None] = lambda _: None) -> list[int]:
    """Returns:  the steps that were trained."""
    model, optimizer = prepared(run)
    seen = []
    for step in run.steps(steps=steps):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
        seen.append(step.index)
        if step.index == stop_at:
            run.stop()
        behind(step)
    return seen


def test_the_bits_are_those_of_a_run_that_was_to_have_as_many_steps() -> None:
    stopped, short = AloneRun(), AloneRun()
    torch.manual_seed(0)
    assert train(stopped, 3) == [0, 1, 2, 3]
    torch.manual_seed(0)
    assert train(short, None, steps=4) == [0, 1, 2, 3]
    stopped.log(late=1.0)
    assert stopped.finish() == short.finish()
    assert [row.step for row in stopped.rows] == [1, 2, 3, 4]
    assert stopped.rows[-1].values["late"] == 1.0, "the last row waits for what is logged at the end"
    assert [one.step for one in stopped.hearing.said if isinstance(one, wire.Stopped)] == [4]
    assert not [one for one in short.hearing.said if isinstance(one, wire.Stopped)]


def test_the_step_that_stops_is_the_last_one() -> None:
    told: dict[int, tuple[bool, bool]] = {}
    train(AloneRun(), 3, behind=lambda step: told.update({step.index: (step.every(100), step.is_last_of_epoch)}))
    assert told == {0: (False, False), 1: (False, False), 2: (False, True), 3: (True, True)}


def test_to_stop_twice_or_in_the_last_step_changes_nothing() -> None:
    run = AloneRun()
    assert train(run, 5, behind=lambda step: run.stop() if step.index == 5 else None) == [0, 1, 2, 3, 4, 5]
    assert run.session.stopped_of is None


def test_epochs_end_with_the_step_or_behind_the_epoch() -> None:
    for stops_behind, expected in ((False, [0, 1, 2, 3]), (True, [0, 1, 2, 3, 4, 5])):
        run, seen = AloneRun(), []
        model, optimizer = prepared(run)
        for epoch in run.epochs(4):
            for step in epoch:
                for x, y in step:
                    step.backward(loss_of(model, x, y))
                optimizer.step()
                seen.append(step.index)
                if step.index == 3 and not stops_behind:
                    run.stop()
            run.log(behind=epoch.index)
            if epoch.index == 1 and stops_behind:
                run.stop()
        assert seen == expected
        assert run.finish()
        assert run.rows[-1].values["behind"] == 1.0


def test_a_state_that_was_stopped_is_over_unless_it_is_to_be_longer() -> None:
    run = AloneRun()
    train(run, 3)
    for steps, over in ((6, True), (9, False)):
        again = AloneRun()
        again.session.total_steps = steps
        again.session.take_extra(run.session.extra())
        resume_stopped(again.session, run.session.extra()["stopped_of"])
        assert again.session.total_steps == (4 if over else 9)


def test_break_is_told_what_to_do_instead() -> None:
    run = AloneRun()
    model, optimizer = prepared(run)
    for step in run.steps():
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
        break
    with pytest.raises(ModelError, match=r"returned in step 0; .*To end early, call run\.stop\(\) in place of break"):
        run.finish()


def test_stop_outside_of_the_loop_is_told_where_it_belongs() -> None:
    run = AloneRun()
    with pytest.raises(ModelError, match=r"belongs into the loop over run\.steps"):
        run.stop()
    prepared(run)
    batches = iter(next(run.steps()))
    with pytest.raises(ModelError, match="belongs behind the loop over the step's microbatches"):
        run.stop()
    next(batches)
    with pytest.raises(ModelError, match="belongs behind the loop over the step's microbatches"):
        run.stop()


def test_the_example_of_the_guide_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "how-to" / "write-a-job.md").read_text()
    code = guide.split("## Stop early", 1)[1].split("```python", 1)[1].split("```", 1)[0]
    around: dict[str, Any] = {
        "torch": torch,
        "Net": lambda: torch.nn.Linear(3, 1),
        "train_set": ROWS,
        "test_set": ROWS,
        "loss_fn": lambda told, y: (told.mean(1) - y).square().mean() + 1.0,
    }
    exec(code, around)
    losses = iter([3.0, 2.0, 2.5, 2.4, 2.3, 1.0])
    run = AloneRun()
    monkeypatch.setattr(run, "evaluate", lambda *_: next(losses))
    around["train"](run)
    assert [row.values["test_loss"] for row in run.rows if "test_loss" in row.values] == [3.0, 2.0, 2.5, 2.4]
    assert run.finish()
    assert run.rows[-1].values["test_loss"] == 2.3, "three epochs behind the best one"
