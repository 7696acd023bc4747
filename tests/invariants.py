"""What must hold after every chaos run, whatever was done to it: the checker of the invariants that a local run has.

    I3   no process of the run lives any more
    I4   the newest committed checkpoint can be restored
    I5   a loss costs at most the microbatches of one step; only the loss of all workers costs what no checkpoint has
    I6   one outcome, and it is the last event; events in order; generations grow; a worker is lost or leaves once
    I10  digest, rows and what the program logged are those of one undisturbed worker; one row a step

I1, I2, I7, I8 and I9 are of the service: tests/integration and tests/chaos/test_cluster.py have them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from ceilings import RECORD, Commit, WarmUp, check_pauses, check_warm_ups, file_of
from local_job import LocalJob
from redone import check_redone
from running_home import ClusterJob

from rubato import testing
from rubato.checkpoint.manifest import find_latest, open_checkpoint
from rubato.checkpoint.storage import LocalFolder

TIMINGS = ("_seconds", "_per_second")
"""Ends of the names of values that no two runs share."""


@dataclass(frozen=True)
class Undisturbed:
    """What one worker alone arrives at."""

    step: int
    digest: str
    rows: Mapping[int, Mapping[str, float]]


def undisturbed(program: str, **spec: Any) -> Undisturbed:
    """Train with one worker that nothing happens to.

    Args:    spec: as for the run that is compared; its workers do not matter.
    """
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "hold").touch()
        workers = {**spec.pop("workers", {}), "initial": 1, "min": 1}
        with LocalJob(Path(home), program, **spec, workers=workers) as run:
            step, digest = run.result()
            assert len(run.events("generation.formed")) == 1
            return Undisturbed(step, digest, values_by_step(run))


def untimed(values: Mapping[str, float]) -> dict[str, float]:
    """What does not depend on the clock."""
    return {name: value for name, value in values.items() if not name.endswith(TIMINGS)}


def values_by_step(run: LocalJob) -> dict[int, dict[str, float]]:
    """What the rows say that does not depend on the clock; a row told twice must say the same."""
    found: dict[int, dict[str, float]] = {}
    for row in run.rows():
        values = untimed(row["values"])
        first = found.setdefault(row["step"], values)
        assert first == values, f"step {row['step']} was told as {first}, then as {values}\n{run.told()}"
    return found


def check(run: LocalJob, expected: Undisturbed, *, fault: str = "", lost_touch: int = 0) -> None:
    """Wait for the end of a run and assert all of it.

    Args:
        fault: the row of the fault table that this run shows.
        lost_touch: how often living workers may have lost each other.
    """
    result = run.result()
    check_results(run, expected, result, len(run.events("job.restarting")))
    check_run(run, fault=fault, lost_touch=lost_touch)


def check_run(run: LocalJob, *, fault: str = "", lost_touch: int = 0) -> None:
    """The same but for I10: of a run whose bits depend on the number of its workers."""
    run.result()
    check_order(run)
    check_redone(run, lost_touch=lost_touch)
    check_checkpoints(run)
    check_processes(run)
    told = run.told()
    assert "ProtocolError" not in told, told
    if fault:
        record(run, fault)


def check_results(run: LocalJob, expected: Undisturbed, result: tuple[int, str], restarts: int) -> None:
    """I10."""
    rows = values_by_step(run)
    differing = [step for step in expected.rows if rows.get(step) != expected.rows[step]]
    first = differing[0] if differing else 0
    assert not differing, f"step {first}: {rows.get(first)}, undisturbed {expected.rows[first]}\n{run.told()}"
    assert result == (expected.step, expected.digest), run.told()
    steps = [row["step"] for row in run.rows()]
    assert set(steps) == set(range(1, expected.step + 1))
    if not restarts:
        assert steps == sorted(set(steps)), "a step was told twice, or out of order"


def check_order(run: LocalJob) -> None:
    """I6."""
    events = run.events()
    assert [event["kind"] for event in events].count("outcome") == 1
    assert events[-1]["kind"] == "outcome"
    times = [event["time"] for event in events]
    assert times == sorted(times)
    for kind in ("worker.lost", "worker.left"):
        ends = Counter(event["data"]["worker_id"] for event in run.events(kind))
        assert all(count == 1 for count in ends.values()), f"{kind}: {ends}"
    by_generation = [row["generation"] for row in run.rows()]
    assert by_generation == sorted(by_generation), "a step of a generation that was over"


def check_checkpoints(run: LocalJob) -> None:
    """I4."""
    committed = [event["step"] for event in run.events("checkpoint.committed")]
    assert committed, "a run that ends well saves its end"
    corrupt: list[str] = []
    found = find_latest(run.run.checkpoints, lambda folder, cause: corrupt.append(f"{folder.name}: {cause}"))
    assert found is not None, corrupt
    assert found[1].step == max(committed), corrupt


def check_cluster(job: ClusterJob, alone: Undisturbed) -> None:
    """The bits and the rows of one worker alone, and every checkpoint that is there can be opened."""
    job.check(alone.digest)
    assert {point.step: untimed(point.values) for point in job.home.client.metrics(job.id)} == alone.rows
    folders = [LocalFolder(path) for path in job.checkpoints.iterdir()]
    assert folders
    for folder in folders:
        open_checkpoint(folder)


def check_processes(run: LocalJob, patience_s: float = 60.0) -> None:
    """I3."""
    deadline = time.monotonic() + patience_s
    pids = {event["data"]["pid"] for event in run.events("worker.started")}
    while living := pids & {child.pid for child in psutil.Process().children() if _is_running(child)}:
        assert time.monotonic() < deadline, f"still alive: {living}"
        time.sleep(0.05)


def _is_running(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def record(run: testing.LocalJob, fault: str, **figures: float) -> None:
    """Assert that the fault cost no time beyond its ceiling, and note what it did where somebody wants to know.

    Args: figures: more than all runs have.
    """
    rows, formed = run.rows(), run.events("generation.formed")
    test = getattr(run, "test", "") or os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    commits = [Commit(datetime.fromisoformat(row["time"]), row["generation"]) for row in rows]
    told = [(event["kind"], event["time"], event.get("data", {})) for event in run.events()]
    check_warm_ups(commits, warm_ups(told))
    restarts = {event["generation"] for event in formed if event["data"]["cause"] == "restart"}
    _note(
        fault,
        test,
        formed=[event["data"] for event in formed],
        step_seconds=[row["values"]["step_seconds"] for row in rows],
        microbatches=run.spec.num_microbatches,
        lost=len(run.events("worker.lost")),
        restarts=len(run.events("job.restarting")),
        **{**cost_of_restarts(rows, restarts), **figures},
    )


def cost_of_restarts(rows: Sequence[Mapping[str, Any]], restarts: Collection[int]) -> dict[str, float]:
    """What going back to checkpoints cost at most: seconds between two commits, and steps computed a second time.

    Args:
        rows: in the order in which they were told.
        restarts: the generations that began from a checkpoint.
    """
    back = [
        (before, after)
        for before, after in itertools.pairwise(rows)
        if before["generation"] != after["generation"] in restarts
    ]
    if not back:
        return {}
    times = [[datetime.fromisoformat(row["time"]) for row in pair] for pair in back]
    return {
        "standstill": max((after - before).total_seconds() for before, after in times),
        "steps_again": max(before["step"] + 1 - after["step"] for before, after in back),
    }


def record_cluster(
    job: ClusterJob,
    fault: str,
    test: str,
    *,
    since: datetime | None = None,
    steps_again: int | None = None,
    trained_until: datetime | None = None,
) -> None:
    """The same of a job on a cluster.

    Args:
        since: when the fault began, where it need not change the membership: how late a step came is noted then.
        trained_until: when the last of the steps was committed whose rows were lost, where some were.
        steps_again: how many were computed a second time, where training went back to a checkpoint.
    """
    points = list(job.home.client.metrics(job.id))
    commits = [Commit(datetime.fromisoformat(point.time), point.generation or 0) for point in points]
    told = [(event.kind, event.time, event.data) for event in job.home.client.events(job.id)]
    check_warm_ups(commits, warm_ups(told))
    figures: dict[str, float] = {} if steps_again is None else {"steps_again": steps_again}
    if since is not None:
        unseen = [] if trained_until is None else [trained_until]
        figures["standstill"] = standstill_s([*(commit.at for commit in commits), *unseen], since)
    _note(
        fault,
        test,
        formed=[event.data for event in job.events("generation.formed")],
        step_seconds=[point.values["step_seconds"] for point in points],
        microbatches=job.told().microbatches,
        lost=len(job.events("worker.lost")),
        restarts=len(job.events("job.restarting")),
        **figures,
    )


def warm_ups(told: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[WarmUp]:
    """Of the workers that came to stand by while others may have trained: not of those with whom training began.

    Args:    told: kind, time and data of each event.
    """
    begun: dict[str, datetime] = {}
    founded = [data for kind, _, data in told if kind == "generation.formed" and data["cause"] in ("start", "restart")]
    founders = {member["worker_id"] for data in founded for member in data["members"]}
    found = []
    for kind, time_, data in told:
        if data.get("worker_id") in founders:
            continue
        if kind == "worker.started":
            begun[data["worker_id"]] = datetime.fromisoformat(time_)
        elif kind == "worker.ready" and data["worker_id"] in begun:
            found.append(WarmUp(data["worker_id"], begun[data["worker_id"]], datetime.fromisoformat(time_)))
    return found


def standstill_s(commits: Sequence[datetime], since: datetime) -> float:
    """The longest time between two commits of which the second is later than that, less what is usual before; >= 0."""
    ordered = sorted(commits)
    gaps = [(after, (after - before).total_seconds()) for before, after in itertools.pairwise(ordered)]
    usual = [seconds for at, seconds in gaps if at <= since]
    later = [seconds for at, seconds in gaps if at > since]
    assert later, "no step was committed after the fault"
    return max(0.0, max(later) - (statistics.median(usual[-10:]) if usual else 0.0))


def _note(
    fault: str, test: str, *, formed: Sequence[Mapping[str, Any]], step_seconds: Sequence[float], **figures: float
) -> None:
    changes = [one for one in formed if one["cause"] not in ("start", "restart")]
    pauses = [one["paused_seconds"] for one in changes if one["paused_seconds"] is not None]
    check_pauses(file_of(test), fault, [*pauses, figures.get("standstill", 0.0)])
    if not RECORD:
        return
    line = {
        "fault": fault,
        "test": test,
        "pauses": pauses,
        "redone": [one["redone_microbatches"] for one in changes if one["cause"] == "recovery"],
        "step_seconds": sorted(step_seconds)[len(step_seconds) // 2] if step_seconds else math.nan,
        **figures,
    }
    with Path(RECORD).open("a") as file:
        file.write(json.dumps(line) + "\n")
