"""Properties of the scheduler over whole runs: random jobs on the simulated cluster, each round looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduling.simulation import Script, Simulation
from service.scheduling.view import Fail, Keep, Preempt, Resize, Start, Wait

pytestmark = pytest.mark.timeout(900)

few = settings(max_examples=settings.default.max_examples // 4)
"""A whole run is some hundred rounds."""


@st.composite
def scripts(draw: st.DrawFn, slots: int, count: int = 6) -> list[Script]:
    jobs = []
    for index in range(draw(st.integers(1, count))):
        minimum = draw(st.integers(1, max(1, slots)))
        wish = draw(st.integers(minimum, minimum + 3))
        most = draw(st.integers(wish, wish + 3))
        jobs.append(
            Script(
                name=f"job-{index}",
                at_s=draw(st.sampled_from([0, 3, 40, 200])),
                work_s=draw(st.sampled_from([20, 100, 400])),
                min_workers=minimum,
                wish=wish,
                max_workers=most,
                standby=draw(st.sampled_from([0, 0, 1])),
                priority=draw(st.sampled_from([0, 50, 50, 90])),
                is_preemptible=draw(st.booleans()),
                autoscale=draw(st.sampled_from(["off", "capacity", "goodput"])),
                num_microbatches=draw(st.sampled_from([8, 12])),
                overhead=draw(st.sampled_from([0.0, 0.2])),
                scales=draw(st.sampled_from([(), ((60, minimum),), ((30, most), (90, minimum))])),
            )
        )
    return jobs


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    nodes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    return Simulation(nodes, draw(scripts(sum(nodes))))


def rounds(simulation: Simulation, until_s: float) -> Iterator[Simulation]:
    while simulation.unfinished and simulation.at_s < until_s:
        simulation.step()
        yield simulation


@few
@given(simulations())
def test_never_over_capacity_never_outside_the_bounds_and_everybody_hears_why(simulation: Simulation) -> None:
    bounds = {script.name: script for script in simulation._scripts}
    for _ in rounds(simulation, 900):
        assert simulation.taken <= sum(simulation.slots)
        placed = {job.job_id: job for job in simulation.view().placed}
        for job in placed.values():
            assert bounds[job.name].min_workers <= job.granted <= bounds[job.name].max_workers
            if job.autoscale == "off":
                assert job.granted <= max(bounds[job.name].wish, job.wish)
        assert all(decision.because.strip() for decision in simulation.decisions)
        waits = [decision for decision in simulation.decisions if isinstance(decision, Wait)]
        assert [wait.position for wait in waits] == list(range(1, len(waits) + 1))


@few
@given(simulations())
def test_everybody_ends(simulation: Simulation) -> None:
    """Nobody starves, however important the others are; only those that need more than there is stay behind."""
    simulation.run(until_s=6 * 3600, step_s=2)
    assert simulation.unfinished == []


@few
@given(simulations())
def test_in_a_steady_world_nothing_changes_any_more(simulation: Simulation) -> None:
    """With nobody coming, going or asking, decisions settle: whoever grew stays, whoever gave back stays."""
    simulation._scripts = [replace(script, work_s=1e9) for script in simulation._scripts]
    changes = []
    for _ in rounds(simulation, 3600):
        acts = [one for one in simulation.decisions if isinstance(one, Start | Resize | Preempt | Fail)]
        changes += [(simulation.at_s, one) for one in acts]
    assert [change for change in changes if change[0] > 1800] == []


@few
@given(simulations())
def test_priorities_are_respected_and_nobody_is_paused_where_shrinking_would_do(simulation: Simulation) -> None:
    priority = {script.name: script.priority for script in simulation._scripts}
    for _ in rounds(simulation, 900):
        before = {job.job_id: job for job in simulation.view().placed}
        preempts = [one for one in simulation.decisions if isinstance(one, Preempt)]
        for one in preempts:
            assert priority[one.job_id] < priority[one.by]
            assert before[one.job_id].is_preemptible
        if preempts:
            paused = {one.job_id for one in preempts}
            resized = {one.job_id: one.workers for one in simulation.decisions if isinstance(one, Resize)}
            for job in before.values():
                if job.autoscale == "off" or job.job_id in paused or job.is_leaving:
                    continue
                assert resized.get(job.job_id, job.granted) <= max(job.min_workers, job.wish)


@few
@given(simulations())
def test_who_waits_hears_what_for(simulation: Simulation) -> None:
    for _ in rounds(simulation, 600):
        names = {job.name for job in (*simulation.view().placed, *simulation.view().waiting)}
        for one in simulation.decisions:
            if isinstance(one, Wait):
                told = any(name in one.because for name in names - {one.job_id})
                assert told or "whole cluster" in one.because or "free" in one.because, one
            if isinstance(one, Keep) and one.because.startswith("wants"):
                assert "free" in one.because or "may grow again" in one.because, one
