"""One round at a time: tables of who starts, who grows, who gives back, and the sentence of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.scheduling.capacity import Shape
from service.scheduling.view import Decision, Fail, Keep, Preempt, Resize, Start, View, Wait
from tests.unit.service.scheduling.worlds import NOW, cluster, decided, elastic, placed, waiting

GIB = 2**30


class TestQueue:
    def test_a_job_starts_with_what_is_free_between_its_minimum_and_its_wish(self) -> None:
        found = decided(View((cluster(4),), (placed("other", 1),), (waiting("a", 2, 8),)))
        because = "starts with 3 of 8 workers, free 3; the rest join when slots are free"
        assert found["a"] == Start("job_a", "default", 3, 0, because)

    def test_everybody_gets_the_minimum_before_anybody_gets_more(self) -> None:
        found = decided(View((cluster(4),), (), (waiting("a", 1, 4, age=9), waiting("b", 1, 1))))
        assert [found["a"].workers, found["b"].workers] == [3, 1]  # type: ignore[union-attr]

    def test_spare_workers_get_what_is_left(self) -> None:
        spared = waiting("a", 2, 2, standby=2)
        found = decided(View((cluster(3),), (), (spared,)))["a"]
        assert found == Start("job_a", "default", 2, 1, "starts with 2 workers and 1 spare, free 3")
        both = decided(View((cluster(3),), (), (spared, waiting("b", age=-1))))
        assert both["a"] == Start("job_a", "default", 2, 0, "starts with 2 workers, free 3")
        assert isinstance(both["b"], Start)

    def test_all_of_the_minimum_or_nothing_and_the_sentence_names_the_holder(self) -> None:
        found = decided(View((cluster(4),), (placed("digits", 2),), (waiting("a", 4),)))
        assert found["a"] == Wait("job_a", 1, "needs 4 slots, free 2, held by digits")

    def test_without_a_cluster_it_says_how_to_get_one(self) -> None:
        found = decided(View((), (), (waiting("a"),)))["a"]
        assert isinstance(found, Wait)
        assert "rubato up" in found.because

    def test_a_job_that_does_not_fit_holds_back_younger_ones_but_not_more_important_ones(self) -> None:
        young = waiting("young", 1, age=1, is_preemptible=False)
        jobs = (waiting("old", 3, age=9), young, waiting("urgent", 1, priority=90))
        found = decided(View((cluster(4),), (placed("digits", 2),), jobs))
        assert isinstance(found["urgent"], Start)
        assert found["old"] == Wait("job_old", 1, "needs 3 slots, free 1, held by digits and urgent")
        because = "waits behind old, which needs 3 slots; it may not go first, because scheduling.preemptible is false"
        assert found["young"] == Wait("job_young", 2, because)

    def test_a_job_gains_a_point_a_minute(self) -> None:
        holder = placed("holder", 1, is_preemptible=False)
        old, young = waiting("old", age=41 * 60, priority=50), waiting("young", priority=90)
        found = decided(View((cluster(1),), (holder,), (young, old)))
        assert [found["old"].position, found["young"].position] == [1, 2]  # type: ignore[union-attr]

    def test_a_job_that_can_never_fit_holds_back_nobody_and_says_what_to_do(self) -> None:
        found = decided(View((cluster(4),), (), (waiting("huge", 5, age=9), waiting("small"))))
        assert isinstance(found["small"], Start)
        assert isinstance(found["huge"], Wait)
        assert "the whole cluster has 4; lower workers.min or add nodes" in found["huge"].because

    def test_a_job_holds_back_only_those_clusters_that_it_could_run_on(self) -> None:
        clusters = (cluster(2, name="default"), cluster(2, gpus=2, name="gpus"))
        gpu = Shape(cpu=1, gpu=1)
        holder = placed("holder", 2, cluster_id="gpus", shape=gpu)
        found = decided(View(clusters, (holder,), (waiting("gpu", 2, age=9, shape=gpu), waiting("cpu"))))
        assert isinstance(found["gpu"], Wait)
        assert isinstance(found["cpu"], Start)
        assert found["cpu"].cluster_id == "default"

    def test_waiting_ends_at_the_queue_timeout(self) -> None:
        jobs = (
            waiting("a", 3, age=60, queue_timeout=timedelta(seconds=61)),
            waiting("b", 3, age=60, queue_timeout=timedelta(seconds=60)),
            waiting("c", 9, age=60, queue_timeout=timedelta(seconds=60)),
        )
        found = decided(View((cluster(4),), (placed("x", 2),), jobs))
        assert isinstance(found["a"], Wait)
        assert isinstance(found["b"], Fail)
        assert found["b"].reason == "queue_timeout"
        assert isinstance(found["c"], Fail)
        assert found["c"].reason == "unschedulable"

    def test_a_worker_must_fit_onto_one_node(self) -> None:
        found = decided(View((cluster(2, 2),), (), (waiting("wide", shape=Shape(cpu=3, gpu=0)),)))
        assert isinstance(found["wide"], Wait)
        assert "of 3 CPU" in found["wide"].because
        pair = waiting("pair", 2, shape=Shape(cpu=2, gpu=1))
        assert isinstance(decided(View((cluster(2, 2, gpus=1),), (), (pair,)))["pair"], Start)

    def test_workers_are_counted_where_they_live(self) -> None:
        holding = placed("x", 2, shape=Shape(cpu=2, gpu=0), nodes=("default-0", "default-1"), is_preemptible=False)
        wide = waiting("wide", shape=Shape(cpu=3, gpu=0))
        assert isinstance(decided(View((cluster(4, 4),), (holding,), (wide,)))["wide"], Wait)
        together = replace(holding, nodes=("default-0", "default-0"))
        assert isinstance(decided(View((cluster(4, 4),), (together,), (wide,)))["wide"], Start)

    def test_memory_is_counted_as_cpus_are(self) -> None:
        hungry = Shape(cpu=1, gpu=0, memory=6 * GIB)
        world = cluster(4, 4, memory=16 * GIB)
        four = waiting("four", 4, shape=hungry)
        assert isinstance(decided(View((world,), (), (four,)))["four"], Start)
        holder = placed("holder", 1, shape=hungry, is_preemptible=False)
        assert isinstance(decided(View((world,), (holder,), (four,)))["four"], Wait)
        large = decided(View((world,), (), (waiting("large", shape=replace(hungry, memory=17 * GIB)),)))["large"]
        because = (
            "needs 1 slot of 1 CPU and 17 GiB of memory, and the whole cluster has 0; "
            "change resources_per_worker or add nodes"
        )
        assert large == Wait("job_large", 1, because)

    def test_a_worker_goes_to_nodes_of_its_accelerator_only(self) -> None:
        h100s = cluster(8, gpus=4, name="h100s", accelerators=frozenset({"H100"}))
        others = cluster(8, 8, gpus=8, name="others", accelerators=frozenset({"A100", "L4"}))
        job = waiting("a", 2, shape=Shape(cpu=1, gpu=1, accelerator="H100"))
        started = decided(View((others, h100s), (), (job,)))["a"]
        assert isinstance(started, Start)
        assert started.cluster_id == "h100s"
        nowhere = decided(View((others,), (), (job,)))["a"]
        assert isinstance(nowhere, Wait)
        assert "of 1 CPU and 1 GPU on a node with H100, and the whole cluster has 0" in nowhere.because

    def test_what_an_older_agent_does_not_tell_is_left_to_ray(self) -> None:
        job = waiting("a", shape=Shape(cpu=1, gpu=1, memory=GIB, accelerator="H100"))
        assert isinstance(decided(View((cluster(1, gpus=1),), (), (job,)))["a"], Start)

    def test_tenths_of_a_cpu_are_not_lost(self) -> None:
        tenth = waiting("a", 10, shape=Shape(cpu=0.1, gpu=0))
        assert isinstance(decided(View((cluster(1),), (), (tenth,)))["a"], Start)


class TestWishes:
    def test_a_wish_above_what_is_free_waits_with_a_sentence(self) -> None:
        full = decided(View((cluster(3),), (placed("a", 2, wish=4), placed("b", 1)), ()))
        assert full["a"] == Keep("job_a", "wants 4, has 2: 0 slots free, held by b")
        roomy = decided(View((cluster(4),), (placed("a", 2, wish=4), placed("b", 1)), ()))
        assert roomy["a"] == Resize("job_a", 3, 0, "grows from 2 to 3 of the 4 it wants: slots were free")

    def test_the_queue_comes_before_wishes(self) -> None:
        found = decided(View((cluster(4),), (placed("a", 2, wish=4),), (waiting("b", 3),)))
        assert found["a"].because == "wants 4, has 2: 2 slots free, kept for b, which needs 3"

    def test_the_more_important_wish_is_served_first(self) -> None:
        jobs = (placed("a", 1, wish=3, priority=10), placed("b", 1, wish=3, priority=90))
        found = decided(View((cluster(4),), jobs, ()))
        assert isinstance(found["a"], Keep)
        assert found["b"] == Resize("job_b", 3, 0, "grows from 1 to 3: slots were free")

    def test_what_nobody_asked_for_is_given_back_for_a_wish(self) -> None:
        found = decided(View((cluster(4),), (elastic("a", 3, 4, wish=1), placed("b", 1, wish=2)), ()))
        assert found["a"] == Resize("job_a", 2, 0, "gives workers back: b needs 1 slot")
        assert isinstance(found["b"], Keep), "the slot is not free yet"

    def test_a_spare_becomes_one_of_those_that_train(self) -> None:
        job = placed("a", 2, wish=3, standby=1, granted_standby=1, held=3)
        found = decided(View((cluster(3),), (job,), ()))["a"]
        assert isinstance(found, Resize)
        assert (found.workers, found.standby) == (3, 0)

    def test_slots_that_workers_have_not_left_yet_are_not_given_away(self) -> None:
        found = decided(View((cluster(4),), (placed("a", 2, held=4), placed("b", 0, wish=0)), (waiting("c", 2),)))
        assert found["c"] == Wait("job_c", 1, "needs 2 slots, free 0; a gives slots back for it")


class TestElastic:
    def test_free_slots_go_where_they_bring_most(self) -> None:
        # With 8 microbatches 4 workers compute 2 each; a fifth, sixth and seventh bring nothing, only all eight do.
        jobs = (elastic("a", 4, 8, wish=1, num_microbatches=8), elastic("b", 1, 8, wish=1, num_microbatches=8))
        found = decided(View((cluster(7),), jobs, ()))
        assert found["a"] == Keep(
            "job_a", "wants 1, has 4: 3 more from free slots (autoscale: capacity); 0 slots free, held by b"
        )
        assert isinstance(found["b"], Resize)
        assert found["b"].workers == 3

    def test_only_useful_counts_are_granted(self) -> None:
        found = decided(View((cluster(7),), (elastic("a", 4, 8, wish=1, num_microbatches=8),), ()))["a"]
        assert found.because.endswith("the next useful count is 8, and 3 slots are free")

    def test_a_queued_job_gets_its_minimum_by_shrinking_the_one_that_loses_least(self) -> None:
        jobs = (elastic("a", 4, 8, wish=1, num_microbatches=8), elastic("b", 4, 4, wish=1, num_microbatches=12))
        found = decided(View((cluster(8),), jobs, (waiting("c"),)))
        assert isinstance(found["a"], Keep)
        assert found["b"] == Resize("job_b", 3, 0, "gives workers back: c needs 1 slot")
        assert found["c"] == Wait("job_c", 1, "needs 1 slot, free 0; b gives slots back for it")

    def test_nothing_is_taken_where_it_would_not_be_enough(self) -> None:
        jobs = (elastic("a", 3, 3, wish=1), placed("b", 1, is_preemptible=False))
        found = decided(View((cluster(4),), jobs, (waiting("c", 4),)))
        assert not any(isinstance(one, Resize) for one in found.values())
        assert found["c"].because == "needs 4 slots, free 0, held by a and b"

    def test_a_job_gives_what_it_wants_only_to_one_that_is_as_important(self) -> None:
        for priority, gives in ((20, False), (50, True)):
            job = elastic("a", 3, 3, wish=3, is_preemptible=False)
            found = decided(View((cluster(3),), (job,), (waiting("c", 2, priority=priority),)))
            assert isinstance(found["a"], Resize) is gives

    def test_a_count_that_changed_lately_stays(self) -> None:
        lately = NOW - timedelta(seconds=10)
        job = elastic("a", 1, 3, wish=1, granted_at=lately)
        found = decided(View((cluster(3),), (job,), ()))["a"]
        assert (
            found.because
            == "has slots for the 1 worker it wants; its count changed lately, it may grow again at 12:00:20 UTC"
        )
        dear = replace(job, granted_at=NOW - timedelta(seconds=40), pause_s=2.0)
        assert isinstance(decided(View((cluster(3),), (dear,), ()))["a"], Keep), "its pauses cost two seconds"
        spoken = replace(job, wish=2, wished_at=NOW)
        assert isinstance(decided(View((cluster(3),), (spoken,), ()))["a"], Resize), "its user asked since"

    def test_a_user_who_wants_fewer_gets_them_though_slots_are_free(self) -> None:
        job = elastic("a", 4, 4, wish=2, wished_at=NOW)
        found = decided(View((cluster(8),), (job,), ()))["a"]
        assert found == Resize("job_a", 2, 0, "shrinks from 4 to 2: so many are wanted")

    def test_off_means_that_only_the_user_changes_the_count(self) -> None:
        job = placed("a", 2, max_workers=4, is_preemptible=False)
        assert isinstance(decided(View((cluster(4),), (job,), ()))["a"], Keep)
        assert isinstance(decided(View((cluster(2),), (job,), (waiting("b"),)))["a"], Keep)

    def test_goodput_goes_on_where_a_worker_pays_and_gives_back_where_not(self) -> None:
        job = elastic("a", 2, 4, wish=1, autoscale="goodput", rates={1: 100.0, 2: 190.0})
        assert decided(View((cluster(4),), (job,), ()))["a"].workers == 3  # type: ignore[union-attr]
        poor = replace(job, rates={1: 100.0, 2: 110.0})
        found = decided(View((cluster(4),), (poor,), ()))["a"]
        assert isinstance(found, Resize)
        assert found.workers == 1
        between = replace(job, rates={1: 100.0, 2: 140.0, 3: 170.0})
        assert isinstance(decided(View((cluster(4),), (between,), ()))["a"], Keep)


class TestPreemption:
    def test_the_least_important_and_youngest_is_paused(self) -> None:
        young = {"placed_at": NOW - timedelta(minutes=5)}
        jobs = (placed("a", 1, priority=10), placed("b", 1, priority=10, **young), placed("c", 1, priority=20))
        found = decided(View((cluster(3),), jobs, (waiting("d", priority=60),)))
        assert [name for name, one in found.items() if isinstance(one, Preempt)] == ["b"]
        assert found["b"].because == (
            "is paused with a checkpoint for d (priority 60), which needs 1 slot; it comes back to the queue by itself"
        )
        assert found["d"].because == "needs 1 slot, free 0; b is being paused for it"

    def test_no_more_are_paused_than_needed(self) -> None:
        jobs = (placed("small", 1, priority=10), placed("large", 3, 3, priority=20))
        found = decided(View((cluster(4),), jobs, (waiting("d", 3, priority=60),)))
        assert [name for name, one in found.items() if isinstance(one, Preempt)] == ["large"]

    def test_nobody_is_paused_for_one_as_important_nor_who_may_not_be_nor_who_has_hardly_begun(self) -> None:
        begun = {"placed_at": NOW - timedelta(seconds=60)}
        jobs = (placed("a", 1), placed("b", 1, priority=10, is_preemptible=False), placed("c", 1, priority=10, **begun))
        found = decided(View((cluster(3),), jobs, (waiting("d", age=3600),)))
        assert isinstance(found["d"], Wait)
        assert not any(isinstance(one, Preempt) for one in found.values())

    def test_shrinking_comes_before_pausing(self) -> None:
        jobs = (elastic("a", 2, 4, wish=1, priority=90), placed("b", 1, priority=10))
        found = decided(View((cluster(3),), jobs, (waiting("d", priority=60),)))
        assert isinstance(found["a"], Resize)
        assert isinstance(found["b"], Keep)

    def test_what_is_on_its_way_is_waited_for(self) -> None:
        jobs = (placed("a", 1, is_leaving=True, priority=10), placed("b", 1, priority=10))
        found = decided(View((cluster(2),), jobs, (waiting("d", priority=60),)))
        assert isinstance(found["b"], Keep)
        assert found["d"].because == "needs 1 slot, free 0; a gives slots back for it"


def test_a_smaller_cluster_takes_grants_back_that_nobody_uses() -> None:
    found = decided(View((cluster(2),), (placed("a", 4, held=2, nodes=("default-0", "default-0")),), ()))["a"]
    assert found == Resize("job_a", 2, 0, "wants 4, is granted 2: the cluster has lost slots")


def test_on_a_silent_cluster_nothing_changes() -> None:
    found = decided(View((), (placed("a", 4, wish=1),), ()))["a"]
    silent = "the cluster default does not answer; nothing is changed meanwhile. Where it is gone for good, "
    assert found == Keep("job_a", f"{silent}`rubato pause --force` and then `rubato resume` move the job")
    leaving = decided(View((), (placed("a", 4, is_leaving=True),), ()))["a"]
    assert leaving == Keep("job_a", f"{silent}ask again with --force")


# --- properties of one round, whatever the world looks like -----------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> View:
    nodes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=2))
    left = sum(nodes)
    jobs = []
    for index in range(draw(st.integers(0, 4))):
        granted = draw(st.integers(0, left))
        if not granted:
            continue
        left -= granted
        wish = draw(st.integers(1, 6))
        age = timedelta(seconds=draw(st.sampled_from([10, 130, 4000])))
        jobs.append(
            placed(
                f"p{index}",
                granted,
                draw(st.integers(1, min(wish, granted))),
                wish,
                max_workers=max(wish, granted) + draw(st.integers(0, 3)),
                priority=draw(st.sampled_from([0, 50, 90])),
                is_preemptible=draw(st.booleans()),
                is_leaving=draw(st.booleans()),
                autoscale=draw(st.sampled_from(["off", "capacity", "goodput"])),
                rates=draw(st.sampled_from([{}, {1: 100.0}, {1: 100.0, 2: 105.0}])),
                placed_at=NOW - age,
                granted_at=NOW - age / 2,
                project=draw(st.sampled_from(["a", "b"])),
                is_backfilled=draw(st.booleans()),
                ranked_at=NOW - age,
            )
        )
    queue = tuple(
        waiting(
            f"w{index}",
            draw(st.integers(1, 6)),
            6,
            max_workers=8,
            age=draw(st.sampled_from([0, 60, 7200])),
            priority=draw(st.sampled_from([0, 50, 90])),
            standby=draw(st.sampled_from([0, 1])),
            autoscale=draw(st.sampled_from(["off", "capacity"])),
            is_preemptible=draw(st.booleans()),
            project=draw(st.sampled_from(["a", "b"])),
        )
        for index in range(draw(st.integers(0, 4)))
    )
    quotas = draw(st.sampled_from([{}, {}, {"a": 3}, {"a": 1, "b": 4}]))
    return View((cluster(*nodes),), tuple(jobs), queue, quotas)


def _granted_after(view: View, found: dict[str, Decision]) -> Iterator[int]:
    """Slots that may be in use after the round: what was held, and what is granted anew."""
    for job in view.placed:
        one = found[job.name]
        after = one.workers + one.standby if isinstance(one, Resize) else job.granted
        yield max(job.held, job.granted, after)
    for waiter in view.waiting:
        one = found[waiter.name]
        yield one.workers + one.standby if isinstance(one, Start) else 0


@given(worlds())
def test_never_over_capacity_never_below_the_minimum_and_everyone_hears_why(view: View) -> None:
    found = decided(view)
    assert len(found) == len(view.placed) + len(view.waiting)
    assert all(one.because for one in found.values())
    assert sum(_granted_after(view, found)) <= sum(int(node.cpu) for node in view.clusters[0].nodes)
    for job in (*view.placed, *view.waiting):
        one = found[job.name]
        if isinstance(one, Start | Resize):
            assert job.min_workers <= one.workers <= job.max_workers


@given(worlds())
def test_no_project_gets_more_than_its_quota(view: View) -> None:
    found = decided(view)
    after = list(zip((*view.placed, *view.waiting), _granted_after(view, found), strict=True))
    for project, limit in view.max_slots.items():
        before = sum(job.occupied for job in view.placed if job.project == project)
        now = sum(slots for job, slots in after if job.project == project)
        assert now <= max(before, limit)


@given(worlds())
def test_nobody_hears_the_name_of_a_foreign_job(view: View) -> None:
    jobs = (*view.placed, *view.waiting)
    found = decided(view)
    for job in jobs:
        one = found[job.name]
        foreign = {other.name for other in jobs if other.project != job.project}
        assert not foreign & set(re.findall(r"\w+", one.because)), one.because
        if isinstance(one, Preempt):
            assert one.is_for_foreign == (one.by.removeprefix("job_") in foreign)


@given(worlds())
def test_a_quota_that_is_never_reached_changes_nothing(view: View) -> None:
    assert decided(replace(view, max_slots={"a": 1000, "b": 1000})) == decided(replace(view, max_slots={}))


@given(worlds())
def test_whoever_went_first_is_paused_once_that_is_enough(view: View) -> None:
    """Slots are free, or lent, as many as the first needs: then it starts, or they are on their way to it."""
    found = decided(view)
    first = min(view.waiting, key=lambda job: (job.ranked_at, job.job_id), default=None)
    total = sum(int(node.cpu) for node in view.clusters[0].nodes)
    if first is None or first.min_workers > total or view.max_slots or isinstance(found[first.name], Start):
        return
    lent = sum(
        job.granted
        for job in view.placed
        if job.is_backfilled
        and not job.is_leaving
        and job.ranked_at > first.ranked_at
        and first.queued_at <= job.placed_at
    )
    free = total - sum(job.occupied for job in view.placed)
    if free + lent >= first.min_workers:
        assert any(isinstance(one, Preempt | Resize) for one in found.values()) or any(
            job.is_leaving for job in view.placed
        )


@given(worlds())
def test_nobody_starts_before_one_that_could_start_sooner(view: View) -> None:
    """But for those that make way again; a quota holds back its own project only."""
    view = replace(view, max_slots={})
    found = decided(view)
    total = sum(int(node.cpu) for node in view.clusters[0].nodes)
    order = sorted(view.waiting, key=lambda job: (job.ranked_at, job.job_id))
    starts = [found[job.name] for job in order if job.min_workers <= total]
    has_started = [isinstance(one, Start) and not one.is_backfilled for one in starts]
    assert has_started == sorted(has_started, reverse=True)


@given(worlds())
def test_nobody_loses_what_it_wants_without_need(view: View) -> None:
    """Without a queue nobody is paused, and nobody gets less than it wants."""
    quiet = replace(view, waiting=())
    for job in quiet.placed:
        one = decided(quiet)[job.name]
        assert not isinstance(one, Preempt)
        if isinstance(one, Resize):
            assert one.workers >= min(job.granted, job.wish)
