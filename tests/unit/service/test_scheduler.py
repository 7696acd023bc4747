from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.scheduler import ClusterView, Decision, Fail, Holding, NodeView, Shape, Start, View, Wait, Waiting, decide

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
CPU = Shape(cpu=1, gpu=0)


def cluster(*cpus: float, gpus: float = 0, name: str = "default") -> ClusterView:
    return ClusterView(name, tuple(NodeView(f"{name}-{index}", cpu, gpus) for index, cpu in enumerate(cpus)))


def waiting(name: str, minimum: int = 1, desired: int | None = None, *, age: int = 0, priority: int = 50) -> Waiting:
    return Waiting(
        job_id=f"job_{name}",
        name=name,
        shape=CPU,
        min_workers=minimum,
        desired_workers=desired or minimum,
        priority=priority,
        queued_at=NOW - timedelta(seconds=age),
    )


def decided(view: View) -> dict[str, Decision]:
    return {decision.job_id.removeprefix("job_"): decision for decision in decide(view, NOW)}


def test_a_job_starts_with_what_is_free_between_its_minimum_and_its_wish() -> None:
    view = View((cluster(4),), (Holding("default", "other", CPU, 1),), (waiting("a", 2, 8),))
    decision = decided(view)["a"]
    assert decision == Start(
        "job_a", "default", 3, "starts with 3 of 8 workers, free 3; the rest join when slots are free"
    )


def test_spare_workers_get_what_is_left_and_are_held_for_the_job() -> None:
    spared = replace(waiting("a", 2, 2), spare_workers=2)
    assert decided(View((cluster(3),), (), (spared,)))["a"] == Start(
        "job_a", "default", 3, "needed at least 2 slots, free 3"
    )
    behind = decided(View((cluster(4),), (), (spared, waiting("b", age=-1))))["b"]
    assert isinstance(behind, Wait)


def test_all_of_the_minimum_or_nothing_and_the_reason_names_the_holder() -> None:
    view = View((cluster(4),), (Holding("default", "digits", CPU, 2),), (waiting("a", 4),))
    assert decided(view)["a"] == Wait("job_a", 1, "needs 4 slots, free 2, held by digits")


def test_without_a_cluster_it_says_how_to_get_one() -> None:
    decision = decided(View((), (), (waiting("a"),)))["a"]
    assert isinstance(decision, Wait)
    assert "rubato up" in decision.because


def test_a_job_that_does_not_fit_holds_back_younger_ones_but_not_more_important_ones() -> None:
    view = View(
        (cluster(4),),
        (Holding("default", "digits", CPU, 2),),
        (waiting("old", 3, age=9), waiting("young", 1, age=1), waiting("urgent", 1, priority=90)),
    )
    found = decided(view)
    assert isinstance(found["urgent"], Start)
    assert found["old"] == Wait("job_old", 1, "needs 3 slots, free 1, held by digits")
    assert found["young"] == Wait("job_young", 2, "waits behind old, which needs 3 slots")


def test_a_job_that_can_never_fit_holds_back_nobody_and_says_what_to_do() -> None:
    found = decided(View((cluster(4),), (), (waiting("huge", 5, age=9), waiting("small"))))
    assert isinstance(found["small"], Start)
    assert isinstance(found["huge"], Wait)
    assert "the whole cluster has 4; lower workers.min or add nodes" in found["huge"].because


def test_waiting_ends_at_the_queue_timeout() -> None:
    patient = replace(waiting("a", 3, age=60), queue_timeout=timedelta(seconds=61))
    impatient = replace(waiting("b", 3, age=60), queue_timeout=timedelta(seconds=60))
    huge = replace(waiting("c", 9, age=60), queue_timeout=timedelta(seconds=60))
    found = decided(View((cluster(4),), (Holding("default", "x", CPU, 2),), (patient, impatient, huge)))
    assert isinstance(found["a"], Wait)
    assert isinstance(found["b"], Fail)
    assert found["b"].reason == "queue_timeout"
    assert isinstance(found["c"], Fail)
    assert found["c"].reason == "unschedulable"


def test_a_worker_must_fit_onto_one_node() -> None:
    wide = replace(waiting("wide", 1), shape=Shape(cpu=3, gpu=0))
    found = decided(View((cluster(2, 2),), (), (wide,)))
    assert isinstance(found["wide"], Wait)
    assert "of 3 CPU" in found["wide"].because
    pair = replace(waiting("pair", 2), shape=Shape(cpu=2, gpu=1))
    assert isinstance(decided(View((cluster(2, 2, gpus=1),), (), (pair,)))["pair"], Start)


def test_workers_are_counted_where_they_live() -> None:
    holding = Holding("default", "x", Shape(cpu=2, gpu=0), 2, placed=(("default-0", 1), ("default-1", 1)))
    wide = replace(waiting("wide", 1), shape=Shape(cpu=3, gpu=0))
    assert isinstance(decided(View((cluster(4, 4),), (holding,), (wide,)))["wide"], Wait)
    together = replace(holding, placed=(("default-0", 2),))
    assert isinstance(decided(View((cluster(4, 4),), (together,), (wide,)))["wide"], Start)


def test_tenths_of_a_cpu_are_not_lost() -> None:
    third = replace(waiting("a", 10), shape=Shape(cpu=0.1, gpu=0))
    assert isinstance(decided(View((cluster(1),), (), (third,)))["a"], Start)


CLUSTERS = st.lists(st.integers(0, 6), min_size=0, max_size=3).map(lambda cpus: cluster(*cpus))
JOBS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 100), st.integers(0, 2)), max_size=6
).map(
    lambda rows: tuple(
        waiting(str(index), minimum, minimum + more, age=age, priority=priority * 25)
        for index, (minimum, more, age, priority) in enumerate(rows)
    )
)
HOLDINGS = st.lists(st.integers(0, 5), max_size=3).map(
    lambda rows: tuple(Holding("default", f"h{index}", CPU, workers) for index, workers in enumerate(rows))
)


@given(st.builds(View, clusters=CLUSTERS.map(lambda one: (one,)), holdings=HOLDINGS, waiting=JOBS))
def test_never_over_capacity_never_below_the_minimum_and_everyone_hears_why(view: View) -> None:
    decisions = decide(view, NOW)
    jobs = {job.job_id: job for job in view.waiting}
    assert sorted(decision.job_id for decision in decisions) == sorted(jobs)
    starts = [decision for decision in decisions if isinstance(decision, Start)]
    for start in starts:
        assert jobs[start.job_id].min_workers <= start.workers <= jobs[start.job_id].desired_workers
    if starts:
        held = sum(holding.workers for holding in view.holdings)
        total = sum(int(node.cpu) for node in view.clusters[0].nodes)
        assert held + sum(start.workers for start in starts) <= total
    waits = [decision for decision in decisions if isinstance(decision, Wait)]
    assert [wait.position for wait in waits] == list(range(1, len(waits) + 1))
    assert all(decision.because for decision in decisions)


@given(st.builds(View, clusters=CLUSTERS.map(lambda one: (one,)), holdings=HOLDINGS, waiting=JOBS))
def test_nobody_starts_before_a_job_that_could_start_sooner(view: View) -> None:
    """First in, first out: of equal priority, a started job is older than every waiting one that could ever fit."""
    found = decided(view)
    total = sum(int(node.cpu) for node in view.clusters[0].nodes)
    order = sorted(view.waiting, key=lambda job: (-job.priority, job.queued_at, job.job_id))
    started = [isinstance(found[job.name], Start) for job in order if job.min_workers <= total]
    assert started == sorted(started, reverse=True)
