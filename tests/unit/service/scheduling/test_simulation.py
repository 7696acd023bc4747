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
                project=draw(st.sampled_from(["a", "b"])),
            )
        )
    return jobs


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    nodes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    jobs = draw(scripts(sum(nodes)))
    # A quota below a job's minimum would keep it queued for ever.
    least = max((job.min_workers for job in jobs if job.project == "a"), default=1)
    quota = draw(st.sampled_from([None, None, least, least + 1]))
    return Simulation(nodes, jobs, max_slots={} if quota is None else {"a": quota})


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
        for project, quota in simulation.max_slots.items():
            in_use = sum(job.occupied for job in simulation.view().placed if job.project == project)
            assert in_use <= quota
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
        ranks = {job.job_id: job.ranked_at for job in simulation.view().waiting}
        preempts = [one for one in simulation.decisions if isinstance(one, Preempt)]
        for one in preempts:
            job = before[one.job_id]
            if job.is_backfilled and ranks[one.by] <= job.ranked_at:
                continue
            assert priority[one.job_id] < priority[one.by]
            assert job.is_preemptible
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
                told = told or "of its" in one.because
                assert (
                    told
                    or "of another project" in one.because
                    or "whole cluster" in one.because
                    or "free" in one.because
                ), one
            if isinstance(one, Keep) and one.because.startswith("wants"):
                words = ("free", "may grow again", "of its", "is kept for")
                assert any(word in one.because for word in words), one


@st.composite
def rigid_jobs(draw: st.DrawFn) -> tuple[int, list[Script]]:
    """Jobs of one count and one priority: without backfilling they start strictly one behind the other."""
    slots = draw(st.integers(2, 5))
    jobs = []
    for index in range(draw(st.integers(2, 6))):
        count = draw(st.integers(1, slots))
        jobs.append(
            Script(
                name=f"job-{index}",
                at_s=draw(st.sampled_from([0, 3, 40, 120])),
                work_s=draw(st.sampled_from([20, 100, 400])) * count,
                min_workers=count,
                wish=count,
                max_workers=count,
            )
        )
    return slots, jobs


def first_starts(simulation: Simulation) -> dict[str, float]:
    """When each job held slots for the first time."""
    starts: dict[str, float] = {}
    for _ in rounds(simulation, 6 * 3600):
        for one in simulation.decisions:
            if isinstance(one, Start):
                starts.setdefault(one.job_id, simulation.at_s)
    assert simulation.unfinished == []
    return starts


@few
@given(rigid_jobs())
def test_nobody_starts_later_because_others_went_first_but_for_the_time_of_their_pauses(
    world: tuple[int, list[Script]],
) -> None:
    slots, jobs = world
    with_it = Simulation([slots], jobs)
    found = first_starts(with_it)
    plain = first_starts(Simulation([slots], [replace(job, is_preemptible=False) for job in jobs]))
    pauses = sum(life.pauses for life in with_it._lives.values())
    # A pause costs its checkpoint (3 s) and a second start-up (5 s), each a round more.
    for name, at_s in found.items():
        assert at_s <= plain[name] + pauses * 10, (name, pauses)


def test_going_first_is_worth_it() -> None:
    jobs = [
        Script(name="long", work_s=800, min_workers=2, wish=2, max_workers=2),
        Script(name="large", at_s=1, work_s=400, min_workers=4, wish=4, max_workers=4),
        Script(name="small", at_s=2, work_s=100),
    ]
    simulation = Simulation([4], jobs)
    starts = first_starts(simulation)
    over = {entry.name: entry.at_s for entry in simulation.trace if entry.what == "succeeded"}
    assert starts["small"] < over["small"] < starts["large"]
    assert "goes first" in {entry.what for entry in simulation.trace}
    assert simulation._lives["small"].pauses == 0


def test_a_job_that_made_way_comes_back_to_its_place() -> None:
    jobs = [
        Script(name="long", work_s=200, min_workers=2, wish=2, max_workers=2),
        Script(name="large", at_s=1, work_s=400, min_workers=4, wish=4, max_workers=4),
        Script(name="small", at_s=2, work_s=400),
        Script(name="late", at_s=3, work_s=400, min_workers=4, wish=4, max_workers=4),
    ]
    simulation = Simulation([4], jobs)
    starts = first_starts(simulation)
    assert simulation._lives["small"].pauses >= 1
    again = [entry.at_s for entry in simulation.trace if (entry.name, entry.what) == ("small", "starts")]
    assert again
    assert again[0] <= starts["late"], "it came before that one, and age counts on"
