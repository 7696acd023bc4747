from __future__ import annotations

from typing import Any

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
    known = {"job_id": f"job_{name}", "name": name, "status": "running", "because": "has the 6 workers it wants"}
    return {**known, "priority": 70, "min_workers": 2, "granted_workers": 6, **changes}


def test_a_running_job_is_explained_with_those_who_hold_slots(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits/explain", explanation())
    running = [standing("other"), standing("digits", job_id="job_1")]
    service.on("GET", "/queue", {"items": [], "next_cursor": None, "running": running})
    done = rubato("explain", "digits")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[:4] == [
        "digits is running: wants 4, has 2: 0 slots free, held by other",
        "  wants 4, granted 2, training 2, may have 1 to 8, autoscale capacity, priority 50",
        "  a change of its workers pauses the training for 41 ms",
        "  measured: 420 samples/s with 1, 812.5 samples/s with 2",
    ]
    assert lines[-1].split() == ["other", "running", "70", "6", "has", "the", "6", "workers", "it", "wants"]
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
    service.on(
        "GET", "/jobs/digits/explain", explanation(status="failed", because="it raised", reason="user_code_error")
    )
    service.on("GET", "/jobs/job_1", job(status="failed", failure={"reason": "user_code_error", "rank": 1}))
    out = rubato("explain", "digits").out
    assert "digits is failed (user_code_error): it raised" in out
    assert "failure rank: 1" in out
