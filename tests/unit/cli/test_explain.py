from __future__ import annotations

from typing import Any

import pytest

from rubato.cli.explain import describe_batch
from tests.unit.cli.fake_service import FakeService, Rubato, job


def explanation(**changes: Any) -> dict[str, Any]:
    """What the service says of a job."""
    return {
        "job_id": "job_1",
        "name": "digits",
        "status": "running",
        "because": "wants 4, has 2: 0 slots free, held by other",
        "desired_workers": 4,
        "granted_workers": 2,
        "workers": 2,
        "min_workers": 1,
        "max_workers": 8,
        "autoscale": "capacity",
        "priority": 50,
        "pause_seconds": 0.041,
        "rates": {"2": 812.5, "1": 420.0},
        **changes,
    }


def standing(name: str, **changes: Any) -> dict[str, Any]:
    """Another job in the queue."""
    known = {
        "job_id": f"job_{name}",
        "name": name,
        "status": "running",
        "because": "has slots for the 6 workers it wants",
    }
    return {**known, "priority": 70, "min_workers": 2, "granted_workers": 6, **changes}


def spec(batch: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"name": "digits", "recipe": "image-classifier", "batch": batch, **changes}


def test_a_running_job_is_explained_with_those_who_hold_slots(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits/explain", explanation())
    service.on("GET", "/jobs/job_1", job(spec=spec({"global_size": 256, "num_microbatches": 8})))
    running = [standing("other"), standing("digits", job_id="job_1")]
    service.on("GET", "/queue", {"items": [], "next_cursor": None, "running": running})
    done = rubato("explain", "digits")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[:5] == [
        "digits is running: wants 4, has 2: 0 slots free, held by other",
        "  wants 4, granted 2, training 2, may have 1 to 8, autoscale capacity, priority 50",
        "  a change of its workers pauses the training for 41 ms",
        "  measured: 420 samples/s with 1, 812.5 samples/s with 2",
        "  a step is 256 samples in 8 microbatches of 32: 4 passes a worker with 2 workers",
    ]
    assert lines[-1].split(maxsplit=4) == ["other", "running", "70", "6", "has slots for the 6 workers it wants"]
    assert rubato("explain", "digits", "--json").json["because"] == "wants 4, has 2: 0 slots free, held by other"


def test_a_queued_job_is_explained_with_those_in_front(service: FakeService, rubato: Rubato) -> None:
    queued = explanation(
        status="queued",
        because="waits behind first, which needs 2 slots",
        position=2,
        granted_workers=0,
        pause_seconds=None,
        rates={},
        deadline_at="2026-01-31T13:00:00Z",
        queued_at="2026-01-31T12:00:00Z",
    )
    service.on("GET", "/jobs/digits/explain", queued)
    service.on("GET", "/jobs/job_1", job(status="queued"))
    items = [standing("first", status="queued", position=1), standing("digits", status="queued", position=2)]
    service.on("GET", "/queue", {"items": items, "next_cursor": None, "running": [standing("other")]})
    out = rubato("explain", "digits").out
    assert out.startswith("digits is queued: waits behind first, which needs 2 slots\n  position 2, priority 50")
    assert "ends at 2026-01-31T13:00:00Z (limits.queue_timeout)" in out
    before = out[out.index("Before it in the queue:") : out.index("Who holds slots:")]
    assert "first" in before
    assert "digits" not in before


def test_get_shows_why_a_job_has_so_many_workers(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job(scheduling="wants 4, has 2: 0 slots free, held by other", joining=1))
    service.on("GET", "/jobs/job_1/workers", {"items": []})
    lines = [line.split(maxsplit=1) for line in rubato("get", "digits").out.splitlines()]
    assert ["slots", "wants 4, has 2: 0 slots free, held by other"] in lines
    assert ["joining", "1"] in lines


def test_a_failed_job_is_explained_by_its_failure(service: FakeService, rubato: Rubato) -> None:
    failure = {"reason": "user_code_error", "message": "it raised", "rank": 1}
    service.on(
        "GET", "/jobs/digits/explain", explanation(status="failed", because="it raised", reason="user_code_error")
    )
    service.on("GET", "/jobs/job_1", job(status="failed", failure=failure))
    out = rubato("explain", "digits").out
    assert out.startswith("digits failed (user_code_error): it raised\n")
    assert "failure rank: 1" in out
    assert (out.count("user_code_error"), out.count("it raised")) == (1, 1)


@pytest.mark.parametrize(
    ("batch", "workers", "cut", "price"),
    [
        (
            {"global_size": 256},
            1,
            "256 samples in 8 microbatches of 32: 8 passes a worker with 1 worker",
            "8 is what `auto` chooses: of the counts that leave 32 samples in each, the one that keeps 1 to 8 workers",
        ),
        (
            {"global_size": 512, "num_microbatches": 10},
            10,
            "512 samples in 10 microbatches of 51 or 52: 1 pass a worker with 10 workers",
            "10 stays as it was submitted",
        ),
        (
            {"global_size": 100},
            3,
            "100 samples in 8 microbatches of 12 or 13: at most 3 passes a worker with 3 workers",
            "8 is what `auto` chooses, so that each of 1 to 8 workers has one: fewer than 32 samples in each use a",
        ),
        (
            {"global_size": 256, "num_microbatches": 16},
            2,
            "256 samples in 16 microbatches of 16: 8 passes a worker with 2 workers",
            "16 stays as it was submitted: fewer than 32 samples in each use a core badly",
        ),
    ],
)
def test_what_microbatches_cost_is_told(batch: dict[str, Any], workers: int, cut: str, price: str) -> None:
    told, why = describe_batch(spec(batch), workers)
    assert told == f"  a step is {cut}"
    assert why.startswith(f"  {price}")


def test_without_equal_bits_there_is_one_pass() -> None:
    sketch = {"compression": {"method": "sketched_sgd"}}
    _, exchange = describe_batch(spec({"global_size": 256}, reproducible=False, aggregation=sketch), 2)
    assert exchange == "  gradients are exchanged as sketched_sgd: all to one and back (centralised, synchronous)"
    (told,) = describe_batch(spec({"global_size": 256}, reproducible=False), 2)
    assert "each of 2 workers computes its share of them in one pass" in told


@pytest.mark.parametrize(("keepers", "keep"), [(1, "one worker computes"), (2, "2 workers compute")])
def test_who_computes_separated_layers_is_told(keepers: int, keep: str) -> None:
    local = {"method": "layer_separation", "sync_every": 8, "cut": "head", "keepers": keepers}
    batch = {"global_size": 512, "num_microbatches": 8}
    (told,) = describe_batch(spec(batch, reproducible=False, local_updates=local), 4)
    assert told == f"  a step is 512 samples in 8 updates, of which {keep} head, the others all before it"


def test_a_spec_that_is_not_understood_is_passed_over() -> None:
    assert describe_batch(None, 1) == describe_batch({"name": "digits", "novel": 1}, 1) == []
