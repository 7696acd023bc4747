from __future__ import annotations

from datetime import UTC, datetime

from rubato.cli.exits import ExitCode
from rubato.cli.options import UNFINISHED
from tests.unit.cli.fake_service import FakeService, Rubato, job


def test_ps_lists_unfinished_jobs(service: FakeService, rubato: Rubato) -> None:
    service.on(
        "GET", "/jobs", {"items": [job(), job(id="job_2", name="[red]x", joining=1, workers=1)], "next_cursor": None}
    )
    done = rubato("ps")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATUS", "WORKERS", "STEP", "LOSS", "AGE"]
    assert lines[1].split()[:6] == ["job_1", "digits", "running", "2", "120/500", "0.25"]
    assert lines[2].split()[:4] == ["job_2", "[red]x", "running", "1/2"]
    asked = service.asked("GET", "/jobs")[0]
    assert asked.headers["Authorization"] == "Bearer rbt_test"
    assert asked.query["status"].split(",") == [
        *("queued", "starting", "running", "recovering", "pausing", "paused", "stopping")
    ]


def test_ps_with_nothing_to_show_keeps_stdout_empty(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs", {"items": [], "next_cursor": None})
    done = rubato("ps")
    assert (done.code, done.out) == (0, "")
    assert "rubato ps -a" in done.err
    assert rubato("ps", "--json").json == []
    rubato("ps", "-a")
    assert "status" not in service.requests[-1].query


def test_ps_asks_for_statuses_names_and_ages(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs", {"items": [], "next_cursor": None})
    line = "ps --status failed,paused --status cancelled --name digits --since 2026-01-02T03:04:05Z"
    done = rubato(*line.split())
    query = service.requests[-1].query
    assert {name: query[name] for name in ("status", "q")} == {"status": "failed,paused,cancelled", "q": "digits"}
    assert datetime.fromisoformat(query["created_after"]) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert "No job matches." in done.err
    assert "No unfinished job matches; `rubato ps -a`" in rubato("ps", "--name", "digits").err
    assert service.requests[-1].query["status"].split(",") == list(UNFINISHED)
    wrong = rubato("ps", "--status", "done")
    assert wrong.code == ExitCode.USAGE
    assert "'done' is no status; one of queued, starting" in " ".join(wrong.err.replace("│", "").split())
