"""Wide swings for 500 steps, with kills between them: the whole of it is what one undisturbed worker does (I10)."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from churn import SWINGS, check_effects, swing_and_kill
from faulty_run import MODELS, SEED, SPEC, expected
from invariants import check
from local_job import LocalJob

STEPS = 500
BRAKE_S = 0.4
"""Of a step: five of them are about what joiners take to warm up, so most of the steps see a change near by."""
PATIENCE_S = 1500.0


@pytest.mark.timeout(1800)
def test_swings_and_kills_every_few_steps(tmp_path: Path) -> None:
    dice = random.Random(f"{SEED} churn")
    model = dice.choice(MODELS)
    config = {"steps": STEPS, "model": model, "brake_s": BRAKE_S}
    done = []
    with LocalJob(
        tmp_path,
        "faulty",
        **SPEC,
        config=config,
        workers={"initial": 1, "min": 1, "max": max(SWINGS)},
        checkpoint={"every_steps": 10},
        restart={"backoff": {"initial": 0.1, "max": 1.0}, "max_restarts": 1000},
        patience_s=PATIENCE_S,
    ) as run:
        for deed in swing_and_kill(run, dice, until=STEPS - 20):
            done.append(deed)
            print(f"seed {SEED}, {model}, step {run.step}: {deed.told}")
        check(run, expected(model, STEPS), fault="1 -> 8 -> 3 -> 5 -> 1, with kills")
    trained = {event["data"]["workers"] for event in run.formed()}
    assert trained >= {*SWINGS, 1}, done
    check_effects(run, done)
    pauses = [event["data"]["paused_seconds"] for event in run.formed()]
    spread = statistics.quantiles([one for one in pauses if one is not None], n=20)
    print(f"{len(pauses)} generations, pause median {spread[9]:.3f} s, 95 % under {spread[18]:.3f} s")
