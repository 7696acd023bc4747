"""Random churn for as long as you like: `make soak MINUTES=60`. Prints its seed; the same seed does the same.

Each round is one job (300 steps, some five minutes) with one of the oracle's models, disturbed every few steps (every
fourth round swings 1 -> 8 -> 3 -> 5 -> 1), and checked like every chaos test. Ends with the pauses of all rounds, or at
the first fault.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from churn import check_effects, churn, swing  # noqa: E402 - from this checkout
from faulty_run import MODELS, SPEC, expected  # noqa: E402
from invariants import check  # noqa: E402
from local_job import LocalJob  # noqa: E402

CHECKPOINT = {"every_steps": 10}


def play(seed: str, number: int, steps: int) -> list[float]:
    """One round; its pauses in seconds."""
    dice = random.Random(seed)
    model, swings = dice.choice(MODELS), number % 4 == 3
    config = {"steps": steps, "model": model}
    alone = expected(model, steps)
    began = time.monotonic()
    print(f"round {number} (seed {seed!r}): {model}, {'swings' if swings else 'churn'}, {steps} steps", flush=True)
    with tempfile.TemporaryDirectory() as home:
        workers = {"initial": 1 if swings else dice.randint(1, 4), "min": 1, "max": 8}
        restart = {"backoff": {"initial": 0.1, "max": 1.0}, "max_restarts": 1000}
        spec = {**SPEC, "config": config, "workers": workers, "checkpoint": CHECKPOINT, "restart": restart}
        with LocalJob(Path(home), "faulty", **spec) as run:
            done = []
            for deed in swing(run, until=steps - 20) if swings else churn(run, dice, until=steps - 20):
                print(f"  {deed.told}", flush=True)
                done.append(deed)
            check(run, alone, fault="1 -> 8 -> 3 -> 5 -> 1, every 5 steps" if swings else "random churn")
        check_effects(run, done, kills=not swings)
        formed = [event["data"] for event in run.events("generation.formed")]
        pauses = [one["paused_seconds"] for one in formed if one["paused_seconds"] is not None]
        lost = len(run.events("worker.lost"))
    print(f"  equal; {len(formed)} generations, {lost} workers lost, {time.monotonic() - began:.0f} s", flush=True)
    return pauses


def main() -> int:
    """Play rounds until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=300, help="of one round")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    flags = parser.parse_args()
    seed = flags.seed if flags.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    ends, pauses = time.monotonic() + 60 * flags.minutes, []
    for number in itertools.count():
        if number and time.monotonic() >= ends:
            break
        try:
            pauses += play(f"{seed}/{number}", number, flags.steps)
        except BaseException:
            print(f"round {number} of seed {seed} failed: --seed {seed} does it again", file=sys.stderr, flush=True)
            raise
    spread = statistics.quantiles(pauses, n=20) if len(pauses) > 1 else pauses * 19
    print(f"{len(pauses)} changes: pause median {spread[9]:.3f} s, 95 % under {spread[18]:.3f} s, seed {seed}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
