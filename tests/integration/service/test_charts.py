"""Charts: few points, and none of the extremes lost."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, func, insert, select

from rubato.wire.codec import to_json
from service.history import MOST_ROWS, POINTS, _read_buckets, _read_rows, level_of
from service.models import Job, Metric, MetricRollup
from service.rollups import BASE, FACTOR
from service.rollups import width as width_of
from service.watch import JobWatch
from tests.callers import an_admin
from tests.simulated_controller import bearer, metric

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio

STEPS = BASE * FACTOR**2 + 5 * BASE + 17


async def train(controller: SimulatedController, losses: dict[int, float], size: int = 300) -> None:
    """Report rows in batches."""
    steps = sorted(losses)
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        await controller.report(metrics=tuple(metric(step, loss=losses[step]) for step in part), step=part[-1])


async def line(bench: Bench, **query: Any) -> tuple[int, dict[float, float]]:
    """The width of a bucket, and the points of the loss."""
    found = await bench.get("/jobs/digits/metrics/chart", names="loss", **query)
    assert list(found["series"]) == ["loss"]
    x, y = found["series"]["loss"]["x"], found["series"]["loss"]["y"]
    assert x == sorted(x)
    assert len(x) == len(set(x))
    return found["bucket_steps"], dict(zip(x, y, strict=True))


def noise(seed: int, steps: int) -> dict[int, float]:
    draw = random.Random(seed)
    return {step: draw.random() for step in range(steps)}


async def test_a_list_shows_the_course_of_each_loss_in_few_points(bench: Bench) -> None:
    controller = await bench.start()
    assert (await bench.get("/jobs", history="true"))["items"][0]["loss_history"] == []
    assert "loss_history" not in (await bench.get("/jobs"))["items"][0], "it is asked for, or costs nothing"
    losses = {step: 1 / (step + 1) for step in range(1, STEPS)}
    for steps, points in ((20, 20), (MOST_ROWS - 1, POINTS), (STEPS - 1, STEPS // width_of(level_of(STEPS)) + 1)):
        await train(controller, {step: loss for step, loss in losses.items() if step <= steps})
        [job] = (await bench.get("/jobs", history="true"))["items"]
        course = job["loss_history"]
        assert len(course) == points
        assert course[-1] == [steps, losses[steps]]
        assert [step for step, _ in course] == sorted({step for step, _ in course})
        assert [loss for _, loss in course] == sorted((loss for _, loss in course), reverse=True)
        for step, loss in course[1:]:
            assert loss == pytest.approx(losses[step], rel=0.2)
    [watched], _ = await JobWatch(bench.context, an_admin(), with_history=True).snapshot()
    assert [list(point) for point in watched["loss_history"]] == course
    again = STEPS // 2
    await controller.report(metrics=(metric(again, loss=0.5),), step=again)
    [job] = (await bench.get("/jobs", history="true"))["items"]
    whole = again // BASE * BASE
    assert job["loss_history"] == [*(point for point in course if point[0] < whole), [again, 0.5]]
    # Nor are those read that lie beyond, of which there may be any number.
    await controller.report(metrics=(metric(2, loss=0.25),), step=2)
    [job] = (await bench.get("/jobs", history="true"))["items"]
    assert job["loss_history"] == [[1, losses[1]], [2, 0.25]]
    async with bench.context.database.read() as session:
        assert [step for _, step, _ in await _read_rows(session, [job["id"]], "loss", 1, 2)] == [1, 2]
        assert len(await _read_buckets(session, [job["id"]], "loss", 1, 3)) == 4


@pytest.mark.timeout(60)
async def test_a_step_far_away_costs_nothing(bench: Bench) -> None:
    """Between it and the others lie more buckets than can be counted."""
    losses = noise(3, STEPS)
    far = 2**62
    controller = await bench.start()
    await train(controller, losses)
    await controller.report(metrics=(metric(far, loss=5.0),), step=STEPS)
    _, points = await line(bench)
    assert points[far] == 5.0
    assert min(points.values()) == min(losses.values())


async def test_of_very_many_metrics_each_has_fewer_points_and_a_page_fewer_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.metrics.MOST_VALUES", 400)
    controller = await bench.start()
    for begin in range(1, 201, 50):
        rows = tuple(
            metric(step, **{f"norm_{name}": step + name for name in range(10)}) for step in range(begin, begin + 50)
        )
        await controller.report(metrics=rows, step=begin + 49)
    series = (await bench.get("/jobs/digits/metrics/chart", max_points=1000))["series"]
    assert sorted(series) == ["loss", *(f"norm_{name}" for name in range(10))]
    del series["loss"]
    assert all(
        len(one["y"]) <= 40 and (one["y"][0], one["y"][-1]) == (1 + at, 200 + at)
        for at, one in enumerate(series.values())
    )
    one = (await bench.get("/jobs/digits/metrics/chart", max_points=1000, names="norm_3"))["series"]["norm_3"]
    assert len(one["y"]) == 200, "of one nothing is thinned out"
    seen, after = [], 0
    while items := (page := await bench.get("/jobs/digits/metrics", after=after))["items"]:
        assert len(items) <= 40
        seen += [item["step"] for item in items]
        after = page["next_position"]
    assert seen == list(range(1, 201))


async def test_every_stretch_shows_its_least_and_greatest(bench: Bench) -> None:
    losses = noise(1, STEPS)
    controller = await bench.start()
    await train(controller, losses)
    for query in ({"max_points": 100}, {"max_points": 37}, {"max_points": 60, "start": 77, "end": 900}):
        width, points = await line(bench, **query)
        assert width > 1
        assert len(points) <= query["max_points"]
        seen = {step: loss for step, loss in losses.items() if query.get("start", 0) <= step <= query.get("end", STEPS)}
        for first in range(0, STEPS, width):
            part = {step: loss for step, loss in seen.items() if first <= step < first + width}
            if part:
                shown = {step: loss for step, loss in points.items() if first <= step < first + width}
                assert shown == {min(part, key=part.__getitem__): min(part.values())} | {
                    max(part, key=part.__getitem__): max(part.values())
                }
    width, points = await line(bench, max_points=STEPS)
    assert (width, points) == (1, losses), "what is few enough comes as it is"
    found = await bench.get("/jobs/digits/metrics/chart", names="loss", max_points=100, x="time")
    loss = found["series"]["loss"]
    assert loss["times"] == pytest.approx(loss["x"], abs=0.001)
    assert [losses[step] for step in loss["steps"]] == loss["y"]
    rows = await bench.get("/jobs/digits/metrics", after=found["position"] - 1)
    assert [row["step"] for row in rows["items"]] == [STEPS - 1], "a stream goes on where the chart ends"


async def test_no_peak_is_lost_between_rows_and_buckets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.rollups.MOST_ROWS", 200)
    losses = noise(4, STEPS)
    controller = await bench.start()
    await train(controller, losses)
    for max_points in (20, 100, 300, 700):
        _, points = await line(bench, max_points=max_points)
        assert len(points) <= max_points
        assert (min(points.values()), max(points.values())) == (min(losses.values()), max(losses.values()))


async def test_a_mean_is_of_all_values_not_of_the_extremes(bench: Bench) -> None:
    """One slow step in fifty makes the middle between the extremes a line that no step has."""
    losses = {step: 200.0 if step % 50 == 0 else 1000.0 for step in range(STEPS)}
    mean = sum(losses.values()) / STEPS
    controller = await bench.start()
    await train(controller, losses)
    for max_points in (40, 100):
        found = await bench.get("/jobs/digits/metrics/chart", names="loss", max_points=max_points)
        loss = found["series"]["loss"]
        assert {len(column) for column in loss.values()} == {len(loss["x"])}
        assert sum(loss["y"]) / len(loss["y"]) < 750
        assert weighted(loss) == pytest.approx(mean, rel=0.005)
        for step, value in zip(loss["steps"], loss["means"], strict=True):
            first = int(step) // found["bucket_steps"] * found["bucket_steps"]
            part = [losses[one] for one in range(first, min(STEPS, first + found["bucket_steps"]))]
            assert value == pytest.approx(sum(part) / len(part))
    few = (await bench.get("/jobs/digits/metrics/chart", names="loss", max_points=STEPS))["series"]["loss"]
    assert (few["means"], set(few["weights"])) == (few["y"], {1.0}), "of one step it is what was measured"
    [job] = (await bench.get("/jobs", history="true"))["items"]
    assert [loss for _, loss in job["loss_history"]] == pytest.approx([mean] * len(job["loss_history"]), rel=0.03)


def weighted(line: dict[str, list[float]]) -> float:
    """The mean over all stretches."""
    pairs = zip(line["means"], line["weights"], strict=True)
    return sum(mean * weight for mean, weight in pairs) / sum(line["weights"])


async def test_steps_trained_again_replace_what_was_shown(bench: Bench) -> None:
    losses = noise(2, STEPS)
    controller = await bench.start()
    await train(controller, losses)
    await controller.acquire()
    again = {step: loss + 10 for step, loss in losses.items() if step >= 500}
    await train(controller, again, size=7)
    _, points = await line(bench, max_points=50)
    now = losses | again
    assert max(points.values()) == max(now.values())
    assert min(points.values()) == min(now.values())
    last_whole = STEPS // BASE * BASE
    assert all(points[step] == now[step] for step in points if step < last_whole)


async def test_a_job_older_than_the_buckets_is_charted_too(bench: Bench) -> None:
    losses = noise(3, STEPS)
    controller = await bench.start()
    await train(controller, losses)
    before = await line(bench, max_points=100)
    async with bench.context.database.write() as session:
        await session.execute(delete(MetricRollup).where(MetricRollup.bucket < 3))
    assert await line(bench, max_points=100) == before, "missing buckets are read row by row"
    async with bench.context.database.write() as session:
        await session.execute(delete(MetricRollup))
    assert await line(bench, max_points=100) == before
    more = dict.fromkeys(range(STEPS, STEPS + 2 * BASE), 5.0)
    await train(controller, more)
    assert (await line(bench, max_points=100))[1].items() >= {
        min(before[1], key=before[1].__getitem__): min(losses.values())
    }.items()


async def test_gaps_times_and_nothing(bench: Bench) -> None:
    controller = await bench.start()
    assert await bench.get("/jobs/digits/metrics/chart") == {"bucket_steps": 1, "series": {}, "position": 0}
    report = to_json(controller.next_report(metrics=(metric(1, loss=math.nan, lr=0.1), metric(2, loss=0.5)), step=2))
    assert controller.acquired is not None
    path = f"/cluster/v1/jobs/{controller.job_id}/report"
    sent = await bench.client.post(path, content=json.dumps(report), headers=bearer(controller.acquired.token))
    assert sent.status_code == 200, sent.text
    found = await bench.get("/jobs/digits/metrics/chart", x="time")
    assert found["series"]["loss"]["y"] == [0.5], "what was not finite is a gap"
    assert found["series"]["lr"]["y"] == [0.1]
    assert found["series"]["loss"]["x"] == [1769860800.0]
    for query in ({"max_points": 9}, {"max_points": 20_001}, {"x": "epoch"}, {"start": -1}):
        await bench.get("/jobs/digits/metrics/chart", 422, **query)


def extremes(first: int) -> dict[str, Any]:
    """Of a bucket: the least at its first step, the greatest at the next."""
    return {"loss": [[0.1, first, 1.0], [0.9, first + 1, 2.0]]}


async def test_a_million_steps_cost_a_thousand_rows(bench: Bench) -> None:
    """Measured in rows, which no busy machine changes: with 1,000 points this is 0.1 s on SQLite."""
    await bench.submit()
    steps = 1_000_000
    bucket = BASE * FACTOR**2
    async with bench.context.database.write() as session:
        job = (await session.scalars(select(Job))).one()
        # As a job of a million steps leaves it: its buckets, and the rows that no bucket covers.
        for level, width in ((0, BASE), (1, BASE * FACTOR), (2, bucket)):
            rows = [
                {"job_id": job.id, "level": level, "bucket": index, "extremes": extremes(index * width)}
                for index in range(steps // width)
            ]
            await session.execute(insert(MetricRollup), rows)
        ends = [
            {"job_id": job.id, "step": step, "position": step + 1, "time": bench.clock(), "values": {"loss": 0.5}}
            | {"generation": 1, "workers": 1, "attempt": 1}
            for step in (0, steps - 1)
        ]
        await session.execute(insert(Metric), ends)
    fetched = 0

    def count(*_: Any) -> None:
        nonlocal fetched
        fetched += 1

    engine = bench.context.database._reader.sync_engine
    event.listen(engine, "after_cursor_execute", count)
    try:
        width, points = await line(bench, max_points=1000)
    finally:
        event.remove(engine, "after_cursor_execute", count)
    assert width % bucket == 0
    assert points[width] == 0.1, "buckets from before totals were kept are read, too"
    assert fetched < 15, "a few statements, whatever the number of steps"
    async with bench.context.database.read() as session:
        stored = await session.scalar(select(func.count()).select_from(MetricRollup).where(MetricRollup.level == 2))
        assert stored == steps // bucket < 1000
        assert await session.scalar(select(func.count()).select_from(Metric)) == 2


async def test_watchers_read_only_what_changed(bench: Bench) -> None:
    first = await bench.submit("first")
    await bench.submit("second")
    watch = JobWatch(bench.context, an_admin())
    await watch.snapshot()
    read: list[str] = []

    def note(job: Job, _: Any) -> None:
        read.append(job.id)

    event.listen(Job, "load", note)
    try:
        assert await watch.changes() == []
        assert read == []
        await bench.client.patch("/api/v1/jobs/first", json={"labels": {"a": "b"}})
        read.clear()
        assert [job["labels"] for _, job in await watch.changes()] == [{"a": "b"}]
        assert read == [first["id"]]
    finally:
        event.remove(Job, "load", note)
