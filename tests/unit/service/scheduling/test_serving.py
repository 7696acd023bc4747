"""Who goes first while a large job waits, and who waits for a quota."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from service.scheduling.capacity import Shape
from service.scheduling.view import Decision, Fail, Keep, Placed, Preempt, Resize, Start, View, Wait, Waiting
from tests.unit.service.scheduling.worlds import NOW, cluster, decided, elastic, placed, waiting


class TestBackfilling:
    def test_a_smaller_job_goes_first_with_its_minimum_while_the_first_cannot_start(self) -> None:
        jobs = (waiting("large", 4, age=9), waiting("small", 1, 2, age=8), waiting("tiny", 1, 1))
        found = decided(View((cluster(4),), (placed("digits", 2),), jobs))
        assert found["large"] == Wait("job_large", 1, "needs 4 slots, free 2, held by digits")
        because = (
            "starts with 1 worker of 2, free 2, before large, which needs 4 slots; "
            "it is paused as soon as large can start"
        )
        assert found["small"] == Start("job_small", "default", 1, 0, because, is_backfilled=True)
        assert isinstance(found["tiny"], Start)

    def test_it_makes_way_as_soon_as_the_first_can_start_with_its_slots(self) -> None:
        """However important it is, and though it has hardly begun."""
        begun = NOW - timedelta(seconds=5)
        more = {"placed_at": begun, "is_backfilled": True, "priority": 90, "is_preemptible": False}
        small = placed("small", 1, ranked_at=NOW, **more)
        large = waiting("large", 4, age=7200)
        assert isinstance(decided(View((cluster(4),), (small, placed("digits", 1)), (large,)))["small"], Keep)
        found = decided(View((cluster(4),), (small,), (large,)))
        assert found["large"].because == "needs 4 slots, free 3; small is being paused for it"
        assert found["small"] == Preempt(
            "job_small",
            "job_large",
            "is paused with a checkpoint for large, which it had overtaken and which can start with its slots; "
            "it comes back to its place in the queue by itself",
        )

    def test_it_makes_no_way_for_those_whom_it_did_not_overtake(self) -> None:
        more = {"is_backfilled": True, "ranked_at": NOW - timedelta(hours=2), "priority": 50}
        small = placed("small", 1, **more)
        for late in (waiting("later", 4, age=60), waiting("urgent", 4, age=60, priority=50, kept_rank=NOW)):
            assert isinstance(decided(View((cluster(4),), (small,), (late,)))["small"], Keep)
        # It came when that one had its slots for long: only what holds for everybody holds for it.
        came = waiting("came", 4, age=60, priority=50, kept_rank=NOW - timedelta(hours=3))
        assert isinstance(decided(View((cluster(4),), (small,), (came,)))["small"], Keep)

    def test_one_that_is_paused_for_its_priority_is_told_so(self) -> None:
        small = placed("small", 1, is_backfilled=True, ranked_at=NOW)
        urgent = waiting("urgent", 4, age=60, priority=90)
        found = decided(View((cluster(4),), (small,), (urgent,)))["small"]
        assert found.because.startswith("is paused with a checkpoint for urgent (priority 90), which needs 4 slots")

    def test_it_does_not_take_what_the_first_is_about_to_start_with(self) -> None:
        jobs = (placed("digits", 2, is_leaving=True),)
        queue = (waiting("large", 4, age=9), waiting("small", 1))
        found = decided(View((cluster(4),), jobs, queue))
        assert found["small"] == Wait("job_small", 2, "waits behind large, which gets its 4 slots at any moment")
        roomier = decided(View((cluster(5),), jobs, queue))
        assert isinstance(roomier["small"], Start), "a slot is left beside it"

    def test_it_gets_no_more_than_its_minimum_while_the_first_waits(self) -> None:
        more = {"is_backfilled": True, "ranked_at": NOW}
        jobs = (placed("small", 1, wish=3, **more), placed("digits", 2))
        found = decided(View((cluster(5),), jobs, (waiting("large", 4, age=7200),)))
        because = "wants 3, has 1: 2 slots free, kept for large, which needs 4; it is paused as soon as large can start"
        assert found["small"] == Keep("job_small", because)
        alone = decided(View((cluster(5),), jobs, ()))["small"]
        assert isinstance(alone, Resize), "once the first has started it is a job like any other"


class TestForeignJobs:
    """They are counted, not named: a sentence goes to everybody in the project of its job."""

    def test_who_waits_hears_how_many_hold_the_slots(self) -> None:
        jobs = (placed("a", 1), placed("b", 1), *(placed(f"x{index}", 1, project="vision") for index in range(2)))
        found = decided(View((cluster(4),), jobs, (waiting("large", 4), waiting("small", 1, project="vision"))))
        assert found["large"].because == "needs 4 slots, free 0, held by a, b and 2 jobs of other projects"
        assert found["small"].because == "waits behind a job of another project, which needs 4 slots"

    def test_who_goes_first_makes_way_for_a_job_of_another_project(self) -> None:
        large = waiting("large", 4, age=7200)
        small = waiting("small", 1, project="vision")
        found = decided(View((cluster(4),), (placed("digits", 2),), (large, small)))
        assert found["small"].because == (
            "starts with 1 worker of 1, free 2, before a job of another project, which needs 4 slots; "
            "it is paused as soon as a job of another project can start"
        )
        lent = placed("small", 1, is_backfilled=True, ranked_at=NOW, project="vision")
        found = decided(View((cluster(4),), (lent,), (large,)))
        assert found["large"].because == "needs 4 slots, free 3; a job of another project is being paused for it"
        one = found["small"]
        assert isinstance(one, Preempt)
        assert one.is_for_foreign
        assert one.because.startswith(
            "is paused with a checkpoint for a job of another project, which it had overtaken"
        )

    def test_who_gives_back_hears_of_no_name(self) -> None:
        found = decided(View((cluster(4),), (elastic("a", 4, 4, wish=1),), (waiting("b", 1, project="vision"),)))
        assert found["a"].because == "gives workers back: a job of another project needs 1 slot"
        assert found["b"].because == "needs 1 slot, free 0; a job of another project gives slots back for it"


class TestQuotas:
    def view(self, *jobs: Placed, queue: tuple[Waiting, ...] = (), quota: int = 4, slots: float = 10) -> View:
        return View((cluster(slots),), jobs, queue, {"vision": quota})

    def test_a_job_waits_for_the_quota_of_its_project_and_holds_back_only_that(self) -> None:
        queue = (
            waiting("a", 2, age=9, project="vision"),
            waiting("b", 1, age=8, project="vision"),
            waiting("c", 1, project="speech"),
        )
        found = decided(self.view(placed("x", 3, project="vision"), queue=queue))
        assert found["a"] == Wait("job_a", 1, "needs 2 slots, project vision uses 3 of its 4 slots", True)
        assert found["b"].because == "waits behind a of the same project, which needs 2 slots of the quota of vision"
        assert isinstance(found["c"], Start)

    def test_others_of_the_project_go_first_by_what_the_first_leaves_of_the_quota(self) -> None:
        mine = {"project": "vision"}
        queue = (
            waiting("large", 4, age=9, **mine),
            waiting("wide", 2, age=8, **mine),
            waiting("small", 1, age=7, **mine),
            waiting("late", 1, **mine),
        )
        found = decided(self.view(placed("x", 3, **mine), queue=queue, quota=8, slots=6))
        assert found["large"] == Wait("job_large", 1, "needs 4 slots, free 3, held by x")
        behind = "waits behind large of the same project, which needs 4 slots of the quota of vision"
        assert found["wide"] == Wait("job_wide", 2, behind, True)
        assert isinstance(found["small"], Start)
        assert found["small"].is_backfilled
        assert found["late"] == Wait("job_late", 3, behind, True)

    def test_others_of_the_project_grow_by_what_the_first_leaves_of_the_quota(self) -> None:
        """It waits for GPUs; the quota counts slots of all clusters."""
        mine = {"project": "vision"}
        jobs = (placed("x", 2, wish=6, **mine), elastic("y", 2, 8, cluster_id="gpus", **mine))
        gpus = cluster(4, gpus=4, name="gpus")
        queue = (waiting("large", 3, shape=Shape(cpu=1, gpu=1), age=9, **mine),)
        busy = placed("other", 2, cluster_id="gpus", shape=Shape(cpu=1, gpu=1))

        def grown(quota: int) -> Decision:
            return decided(View((cluster(8), gpus), (*jobs, busy), queue, {"vision": quota}))["x"]

        assert grown(12) == Resize("job_x", 6, 0, "grows from 2 to 6: slots were free")
        assert grown(9) == Resize("job_x", 4, 0, "grows from 2 to 4 of the 6 it wants: slots were free")
        kept = "what is left of the quota of project vision is kept for large"
        assert grown(7) == Keep("job_x", f"wants 6, has 2: {kept}")

    def test_a_start_gets_no_more_than_the_quota(self) -> None:
        found = decided(self.view(placed("x", 1, project="vision"), queue=(waiting("a", 1, 8, project="vision"),)))
        assert found["a"] == Start(
            "job_a", "default", 3, 0, "starts with 3 of 8 workers, free 9; the rest join when slots are free"
        )

    def test_nobody_grows_beyond_it(self) -> None:
        jobs = (
            elastic("a", 2, 8, wish=1, project="vision"),
            placed("b", 2, wish=6, project="vision"),
            placed("c", 1, wish=3, project="speech"),
        )
        found = decided(self.view(*jobs))
        assert found["b"] == Keep("job_b", "wants 6, has 2: project vision uses 4 of its 4 slots")
        assert isinstance(found["c"], Resize)
        assert isinstance(found["a"], Resize), "it gives back what it never asked for"
        alone = decided(self.view(replace(jobs[0], granted=4, held=4)))["a"]
        assert alone.because.endswith("project vision uses 4 of its 4 slots")

    def test_what_leaves_counts_until_it_has_left(self) -> None:
        leaving = placed("x", 3, project="vision", is_leaving=True)
        found = decided(self.view(leaving, queue=(waiting("a", 2, project="vision"),)))
        assert found["a"] == Wait(
            "job_a", 1, "needs 2 slots, project vision uses 3 of its 4 slots; x gives slots back for it"
        )

    def test_elastic_jobs_of_the_same_project_give_back_and_others_do_not(self) -> None:
        jobs = (elastic("a", 4, 8, wish=1, project="vision"), elastic("b", 4, 8, wish=1, project="speech"))
        found = decided(self.view(*jobs, queue=(waiting("c", 2, project="vision"),)))
        assert found["a"].workers == 2  # type: ignore[union-attr]
        assert isinstance(found["b"], Keep)
        assert "project vision uses 4 of its 4 slots; a gives slots back for it" in found["c"].because

    def test_a_lowered_quota_takes_what_elastic_jobs_can_give_and_pauses_nobody(self) -> None:
        jobs = (elastic("a", 4, 8, wish=2, project="vision"), placed("b", 3, project="vision"))
        found = decided(self.view(*jobs))
        assert found["a"] == Resize("job_a", 1, 0, "gives workers back: project vision may use 4 slots now")
        assert isinstance(found["b"], Keep)

    def test_what_no_quota_allows_is_said_and_holds_back_nobody(self) -> None:
        queue = (waiting("a", 6, age=9, project="vision"), waiting("b", 1, project="vision"))
        found = decided(self.view(queue=queue))
        assert "needs 6 slots, and project vision may use 4" in found["a"].because
        assert isinstance(found["b"], Start)
        late = waiting("a", 6, age=9, project="vision", queue_timeout=timedelta(seconds=5))
        given_up = decided(self.view(queue=(late,)))["a"]
        assert isinstance(given_up, Fail)
        assert given_up.reason == "unschedulable"

    def test_a_job_that_waits_for_slots_is_not_said_to_wait_for_the_quota(self) -> None:
        jobs = (placed("x", 2, project="vision"), placed("y", 8, project="speech"))
        found = decided(self.view(*jobs, queue=(waiting("a", 2, project="vision"),)))
        assert found["a"] == Wait("job_a", 1, "needs 2 slots, free 0, held by x and a job of another project")


def test_nobody_has_waited_too_long_by_a_clock_that_has_just_jumped() -> None:
    late = replace(waiting("late", 9, age=7200), queue_timeout=timedelta(hours=1))
    assert isinstance(decided(View((cluster(4),), (), (late,)))["late"], Fail)
    assert isinstance(decided(View((cluster(4),), (), (late,), is_settled=False))["late"], Wait)
