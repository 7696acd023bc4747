"""Wide swings for 500 steps, with kills between them: the whole of it is what one undisturbed worker does (I10)."""

from __future__ import annotations

import os
import random
import re
import statistics
from pathlib import Path

import pytest
from churn import SWINGS, swing_and_kill
from invariants import check, undisturbed
from local_job import LocalJob

SEED = int(os.environ.get("RUBATO_CHAOS_SEED", "1"))
STEPS = 500
BATCH = {"global_size": 64, "num_microbatches": 12}
BRAKE_S = 0.4
"""Of a step: five of them are about what joiners take to warm up, so most of the steps see a change near by."""
PATIENCE_S = 1500.0


@pytest.mark.timeout(1800)
def test_swings_and_kills_every_few_steps(tmp_path: Path) -> None:
    dice = random.Random(f"{SEED} churn")
    model = dice.choice(("mlp", "cnn", "transformer", "embedding"))
    config = {"steps": STEPS, "model": model, "brake_s": BRAKE_S}
    done = []
    with LocalJob(
        tmp_path,
        "faulty",
        batch=BATCH,
        config=config,
        workers={"initial": 1, "min": 1, "max": max(SWINGS)},
        checkpoint={"every_steps": 10},
        restart={"backoff": {"initial": 0.1, "max": 1.0}, "max_restarts": 1000},
        patience_s=PATIENCE_S,
    ) as run:
        for told in swing_and_kill(run, dice, until=STEPS - 20):
            done.append(told)
            print(f"seed {SEED}, {model}, step {run.step}: {told}")
        check(run, undisturbed("faulty", batch=BATCH, config=config), fault="1 -> 8 -> 3 -> 5 -> 1, with kills")
    trained = {event["data"]["workers"] for event in run.formed()}
    assert trained >= {*SWINGS, 1}, done
    killed = sum(int(found[1]) for told in done if (found := re.match(r"(\d+) of \d+ were killed", told)))
    assert killed > 0, "nobody was killed"
    # One that was to leave at that moment may have gone as planned.
    assert len(run.events("worker.lost")) >= killed / 2
    pauses = [event["data"]["paused_seconds"] for event in run.formed()]
    spread = statistics.quantiles([one for one in pauses if one is not None], n=20)
    print(f"{len(pauses)} generations, {killed} killed, pause median {spread[9]:.3f} s, 95 % under {spread[18]:.3f} s")
