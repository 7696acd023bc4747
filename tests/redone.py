"""At most one step is computed again for each loss: from what the run itself tells.

A generation that follows a loss says how many microbatches of the interrupted step nobody holds: those that the lost
had computed, and those that nobody had begun. No others are computed (tests/chaos/test_redone.py counts them in the
program). Planned changes cost none. Only where all workers were lost does training go back to a checkpoint, and then
the steps since are told a second time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local_job import LocalJob


@dataclass(frozen=True)
class Told:
    """What a run told."""

    formed: Sequence[tuple[int, Mapping[str, Any]]]
    """First step and data of each event `generation.formed`."""
    steps: Sequence[int]
    """Of the metric rows, in order."""
    microbatches: int
    """Of one step."""
    losses: int
    """Workers that were lost, and times when living ones lost each other."""
    restarts: int


def redone_by_step(told: Told) -> Counter[int]:
    """Microbatches computed again; what a generation cost that ended before its first commit was not told."""
    counts: Counter[int] = Counter()
    for step, data in told.formed:
        counts[step] += data["redone_microbatches"]
    return +counts


def check_told(told: Told) -> None:
    """I5: a loss costs at most the microbatches of one step; nothing else costs any.

    Raises:
        AssertionError: it cost more.
    """
    for step, data in told.formed:
        again, cause = data["redone_microbatches"], data["cause"]
        assert again <= told.microbatches, f"{again} of {told.microbatches} microbatches of step {step} ({cause})"
        assert again == 0 or cause == "recovery", f"{cause} at step {step} cost {again} microbatches"
    counts = redone_by_step(told)
    assert len(counts) <= told.losses, f"{told.losses} losses, and microbatches computed again by step: {dict(counts)}"
    assert counts.total() <= told.losses * told.microbatches, f"{told.losses} losses cost {dict(counts)} microbatches"
    rewinds = [(before, after) for before, after in itertools.pairwise(told.steps) if after <= before]
    assert len(rewinds) <= told.restarts, f"training went back from and to {rewinds}"


def check_redone(run: LocalJob, *, lost_touch: int = 0) -> None:
    """Assert it of a local run.

    Args: lost_touch: how often living workers may have lost each other (their connections, a bit of their memory).
    """
    check_told(
        Told(
            formed=[(event["step"], event["data"]) for event in run.events("generation.formed")],
            steps=[row["step"] for row in run.rows()],
            microbatches=run.spec.num_microbatches,
            losses=len(run.events("worker.lost")) + lost_touch,
            restarts=len(run.events("job.restarting")),
        )
    )
