from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rubato.cli import follow
from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, event, formed, job, log_with, stream


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


def test_get_shows_the_failure_with_its_traceback(service: FakeService, rubato: Rubato) -> None:
    failure = {
        "failure_class": "user",
        "reason": "user_code_error",
        "rank": 1,
        "step": 7,
        "microbatch": 4,
        "traceback": "Traceback\n  boom",
        "message": "it raised",
        "advice": "Mend it.",
    }
    service.on("GET", "/jobs/digits", job(status="failed", message="it raised", failure=failure))
    done = rubato("get", "digits")
    assert done.code == 0
    assert "failure class       user" in done.out
    assert "what to do          Mend it." in done.out
    assert "failure rank        1" in done.out
    assert "failure microbatch  4" in done.out
    assert "Traceback\n  boom" in done.out
    assert done.out.count("it raised") == 1, "told once, as the reason of the status"
    assert rubato("get", "digits", "--json").json["failure"] == failure


def test_get_shows_the_workers_of_a_living_job(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/job_1", job())
    worker = {"worker_id": "w1", "rank": 0, "pid": 77, "state": "active", "phase": "compute", "step": 119, "node": "n1"}
    worker |= {"microbatches": 6, "microbatch_seconds": 0.0214}
    worker |= {"device": "cpu", "memory_bytes": 412_000_000, "silent_seconds": 0.25}
    service.on("GET", "/jobs/job_1/workers", {"items": [worker, {"worker_id": "w2", "state": "warming"}]})
    lines = rubato("get", "job_1").out.splitlines()
    used = ["cpu", "0.41", "GB", "250", "ms", "ago"]
    assert lines[-2].split() == ["w1", "0", "active", "compute", "119", "6", "21", "ms", *used, "77", "n1"]
    assert lines[-1].split() == ["w2", "-", "warming", *["-"] * 9]


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (401, {"detail": "No such token.", "code": "unauthenticated"}, 4, "RUBATO_TOKEN"),
        (404, {"detail": "There is no job 'x'.", "code": "not_found"}, 102, "There is no job 'x'."),
        (503, {"detail": "Starting.", "code": "not_ready"}, 1, "Starting."),
    ],
)
def test_refusals_end_with_their_code(
    service: FakeService, rubato: Rubato, status: int, body: dict[str, Any], code: int, words: str
) -> None:
    service.on("GET", "/jobs/x", Reply(body, status))
    done = rubato("get", "x", "--json")
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_no_service_ends_with_5(rubato: Rubato) -> None:
    done = rubato("ps", "--url", "http://127.0.0.1:1")
    assert done.code == 5
    assert "rubato up" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("scale", "x"),
        ("scale", "x", "0"),
        ("logs", "x", "--rank", "a"),
        ("logs", "x", "--since", "yesterday"),
        ("cancel", "x", "--grace", "soon"),
        ("logs", "x", "--since", "0001-01-01T00:00:00+23:00"),
        ("wait", "x", "--for", "runing"),
        ("wait", "x", "--timeout", "soon"),
        ("pause", "x", "--timeout", "5m"),
        ("scale", "x", "2", "--timeout", "5m"),
        ("worker", "kill", "x", "w1", "--timeout", "5m"),
        ("node", "drain", "n1", "--timeout", "5m"),
        ("submit",),
        ("submit", "a.yaml", "--recipe", "b"),
        ("run",),
        ("run", "train.py", "--recipe", "b"),
        ("profile",),
        ("plan", "a.yaml", "--recipe", "b", "--gbit", "1"),
        ("submit", "a.yaml", "--set", "novalue"),
        ("nonsense",),
    ],
)
def test_wrong_usage_ends_with_2_and_asks_nothing(
    service: FakeService, rubato: Rubato, arguments: tuple[str, ...]
) -> None:
    done = rubato(*arguments)
    assert (done.code, done.out) == (2, "")
    assert service.requests == []


def test_logs_name_their_ranks(service: FakeService, rubato: Rubato) -> None:
    lines = [
        {"id": "0:1", "time": "t", "worker_id": "w1", "rank": 0, "stream": "stdout", "line": "hello [bold]"},
        {"id": "0:2", "time": "t", "worker_id": "w2", "rank": 1, "stream": "stderr", "line": "careful"},
        {"id": "0:3", "time": "t", "worker_id": "w3", "rank": None, "stream": "system", "line": "joins"},
    ]
    end = "event: end\ndata: {}\n\n"
    live = f"id: 0:4\nevent: log\ndata: {json.dumps({'items': lines})}\n\n{end}"
    service.on("GET", "/jobs/job_1/logs", Reply({"items": lines, "next": "0:4"}, stream=live))
    service.on("GET", "/jobs/job_1", job(status="succeeded"))
    expected = ["[rank 0] hello [bold]", "[rank 1 stderr] careful", "[w3 system] joins"]
    assert rubato("logs", "job_1", "--rank", "0,1", "--tail", "5").out.splitlines() == expected
    assert service.requests[-1].query == {"rank": "0,1", "tail": "5"}
    followed = rubato("logs", "job_1", "-f")
    assert (followed.code, followed.out.splitlines()) == (0, expected)
    assert "digits succeeded" in followed.err
    assert [json.loads(line)["id"] for line in rubato("logs", "job_1", "--json").out.splitlines()] == [
        "0:1",
        "0:2",
        "0:3",
    ]


def test_logs_without_a_line_say_so(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/job_1/logs", {"items": [], "next": None})
    nothing = rubato("logs", "job_1")
    assert (nothing.code, nothing.out) == (0, "")
    assert "written nothing yet" in nothing.err
    for limit in (("--rank", "9"), ("--since", "5m")):
        assert rubato("logs", "job_1", *limit).err == "No line matches.\n"
    line = {"id": "0:1", "time": "t", "worker_id": "w1", "rank": 3, "stream": "stdout", "line": "hello"}

    def answer(request: Request) -> Reply:
        return Reply({"items": [] if "rank" in request.query else [line], "next": None})

    service.on("GET", "/jobs/job_1/logs", answer)
    assert rubato("logs", "job_1", "--rank", "9").err == "No line matches. The newest lines are of rank 3.\n"


def test_a_search_goes_on_to_the_beginning_of_the_log_and_says_so(service: FakeService, rubato: Rubato) -> None:
    line = {"id": "0:9", "time": "t", "stream": "stdout", "line": "needle", "rank": 0}
    pages = {None: ([], "8:5"), "8:5": ([], "3:7"), "3:7": ([line], None)}

    def answer(request: Request) -> Reply:
        items, earlier = pages[request.query.get("before")]
        return Reply({"items": items, "next": "9:1", "has_more": True, "earlier": earlier})

    service.on("GET", "/jobs/job_1/logs", answer)
    done = rubato("logs", "job_1", "--grep", "needle")
    assert done.out.splitlines() == ["[rank 0] needle"]
    assert "Looked through 10% of the log" in done.err
    assert "Looked through 60% of the log" in done.err
    assert [request.query.get("tail") for request in service.asked("GET", "/jobs/job_1/logs")] == [None, "100", "100"]


def test_the_whole_log_is_printed_and_a_part_of_it_says_that_it_is_one(service: FakeService, rubato: Rubato) -> None:
    lines = [
        {"id": f"0:{number}", "time": "t", "stream": "stdout", "line": str(number), "rank": 0} for number in range(300)
    ]

    def answer(request: Request) -> Reply:
        if (after := request.query.get("after")) is None:
            return Reply({"items": lines[-100:], "next": "0:300", "has_more": False, "earlier": "0:199"})
        first = int(after.removeprefix("0:"))
        items, end = lines[first : first + 120], min(300, first + 120)
        return Reply({"items": items, "next": f"0:{end}", "has_more": end < 300, "earlier": None})

    service.on("GET", "/jobs/job_1/logs", answer)
    newest = rubato("logs", "job_1")
    assert len(newest.out.splitlines()) == 100
    assert "newest 100 lines; --all prints every one" in newest.err
    whole = rubato("logs", "job_1", "--all")
    assert whole.out.splitlines() == [f"[rank 0] {number}" for number in range(300)]
    assert not whole.err
    assert "takes no --tail" in rubato("logs", "job_1", "--all", "--tail", "5").err
    assert "10000" in rubato("logs", "job_1", "--tail", "10001").err


@pytest.mark.parametrize(
    ("since", "ago_s"), [("90", 90.0), ("5m", 300.0), ("2h", 7200.0), ("2026-01-31T13:00:00+01:00", None)]
)
def test_logs_of_a_time_are_asked_for(service: FakeService, rubato: Rubato, since: str, ago_s: float | None) -> None:
    service.on("GET", "/jobs/job_1/logs", {"items": [], "next": "0:4", "has_more": False})
    before = datetime.now(UTC)
    assert rubato("logs", "job_1", "--since", since).code == 0
    query = service.requests[-1].query
    assert set(query) == {"since"}
    asked = datetime.fromisoformat(query["since"])
    if ago_s is None:
        assert asked == datetime(2026, 1, 31, 12, tzinfo=UTC)
    else:
        assert before <= asked + timedelta(seconds=ago_s) <= datetime.now(UTC)


def test_ctrl_c_detaches_and_says_how_to_come_back(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    service.on("GET", "/jobs/job_1", job())
    monkeypatch.setattr("rubato.client.Client.follow_logs", interrupted)
    done = rubato("logs", "job_1", "-f")
    assert done.code == 101
    assert "Detached; the job goes on. Come back with `rubato logs job_1 -f`" in done.err
    assert [request.method for request in service.requests] == ["GET"]


# --- scale ----------------------------------------------------------------------------------------------------------


def test_scale_waits_for_the_generation_and_tells_the_pause(service: FakeService, rubato: Rubato) -> None:
    old = [event(1, "job.submitted"), formed(2, 0, 4, 1), formed(3, 4, 2, 50)]
    live = stream(
        job(desired_workers=4, joining=2),
        event(4, "worker.ready"),
        formed(5, 2, 4, 1204),
        end=False,
    )
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1/events", log_with(old, live))
    service.on("POST", "/jobs/digits/scale", lambda _: Reply(job(desired_workers=4), 202))
    done = rubato("scale", "digits", "4", "--wait")
    assert done.code == 0
    assert done.err.splitlines()[-1] == "2 → 4 workers at step 1204, paused 41 ms"
    assert service.asked("POST", "/jobs/digits/scale")[0].json == {"workers": 4}
    assert service.requests[-1].headers["Last-Event-ID"] == "3", "an older generation of 4 must not count"


def test_scale_without_wait_returns_at_once(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=4), 202))
    service.on("GET", "/jobs/job_1", job(desired_workers=4))
    done = rubato("scale", "digits", "4", "--json")
    assert (done.code, done.json["desired_workers"]) == (0, 4)
    assert "Asked for 4 workers" in done.err


def test_scale_of_a_job_that_is_restarted_for_it_says_so(service: FakeService, rubato: Rubato) -> None:
    told = "That restarts the job from its newest checkpoint (step 3): steps since then are computed again."
    service.on("GET", "/jobs/digits", job(scaling_restarts=True))
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=4, scaling_restarts=True, message=told), 202))
    done = rubato("scale", "digits", "4")
    assert (done.code, done.err.splitlines()[0]) == (0, told)


@pytest.mark.parametrize(("typed", "more", "is_asked"), [("n\n", [], False), ("y\n", [], True), ("", ["--yes"], True)])
def test_in_a_terminal_a_restart_is_asked_for(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch, typed: str, more: list[str], is_asked: bool
) -> None:
    service.on("GET", "/jobs/digits", job(scaling_restarts=True))
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=4, scaling_restarts=True), 202))
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    done = rubato("scale", "digits", "4", *more)
    assert ("restarts it from its newest checkpoint. Go on?" in done.err) == (not more)
    assert bool(service.asked("POST", "/jobs/digits/scale")) == is_asked
    assert (done.code == 0) == is_asked


def test_scale_to_what_is_there_already(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1/events", log_with([], ""))
    service.on("POST", "/jobs/digits/scale", job())
    done = rubato("scale", "digits", "2", "--wait")
    assert done.code == 0
    assert "has 2 workers already" in done.err


def test_scale_to_what_there_is_while_a_replacement_warms_up_ends_when_nobody_joins(
    service: FakeService, rubato: Rubato
) -> None:
    """A worker of three was killed, and two are asked for: no generation is formed for that."""
    live = stream(job(desired_workers=2, joining=1), event(4, "worker.left"), job(desired_workers=2), end=False)
    service.on("GET", "/jobs/digits", job(desired_workers=3, joining=1))
    service.on("GET", "/jobs/job_1/events", log_with([formed(3, 3, 2, 50)], live))
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=2, joining=1), 202))
    done = rubato("scale", "digits", "2", "--wait", "--timeout", "20s")
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == "digits has 2 workers, and nobody joins."


@pytest.mark.parametrize(
    ("live", "final", "code", "words"),
    [
        (stream(job(desired_workers=3)), job(), 1, "Someone asked for 3"),
        (stream(job(status="failed", desired_workers=4)), job(status="failed"), 100, "failed before it had 4"),
        (stream(), job(status="succeeded"), 1, "succeeded before it had 4"),
        (stream(), job(status="cancelled"), 103, "cancelled before"),
        (stream(job(status="paused", desired_workers=4), end=False), job(), 101, "4 workers holds from `rubato resume"),
    ],
)
def test_a_scaling_that_will_not_come(
    service: FakeService, rubato: Rubato, live: str, final: dict[str, Any], code: int, words: str
) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1", final)
    service.on("GET", "/jobs/job_1/events", log_with([], live))
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=4), 202))
    done = rubato("scale", "digits", "4", "--wait")
    assert done.code == code
    assert words in done.err


def test_scale_of_a_paused_job_says_from_when_the_wish_holds(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job(status="paused", workers=0))
    service.on("POST", "/jobs/digits/scale", Reply(job(status="paused", workers=0, desired_workers=3), 202))
    done = rubato("scale", "digits", "3")
    said = "digits is paused; the wish for 3 workers holds from `rubato resume digits` on.\n"
    assert (done.code, done.err) == (0, said)


def test_scale_wait_ends_at_its_timeout_and_the_wish_stands(service: FakeService, rubato: Rubato) -> None:
    waiting = event(1, "capacity.waiting", "Waiting for 2 slots.")
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1/events", log_with([], stream(waiting, job(desired_workers=4), end=False)))
    service.on("POST", "/jobs/digits/scale", Reply(job(desired_workers=4), 202))
    done = rubato("scale", "digits", "4", "--wait", "--timeout", "0")
    assert done.code == 101
    assert "Still 2 of 4 workers" in done.err


def test_a_job_may_be_called_as_a_local_run_is(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/run_abc", job(name="run_abc"))
    service.on("POST", "/jobs/run_abc/scale", Reply(job(name="run_abc", desired_workers=3), 202))
    assert rubato("scale", "run_abc", "3").code == 0


def test_scale_of_a_local_run_that_ended(rubato: Rubato) -> None:
    done = rubato("scale", "run_0123456789abcd", "3")
    assert done.code == 102
    assert "there is no run run_0123456789abcd in " in done.err


# --- pause, resume, cancel, wait ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "until"), [("pause", "paused"), ("cancel", "cancelled"), ("resume", "running")])
def test_verbs_wait_for_their_status(service: FakeService, rubato: Rubato, verb: str, until: str) -> None:
    service.on("POST", f"/jobs/digits/{verb}", Reply(job(status="pausing"), 202))
    service.on("GET", "/jobs/job_1", job(status=until))
    done = rubato(verb, "digits", "--wait", "--json")
    assert (done.code, done.json["status"]) == (0, until)
    assert until in service.requests[-1].query["for"].split(",")


def test_a_pause_that_came_too_late(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/jobs/digits/pause", Reply(job(status="pausing"), 202))
    service.on("GET", "/jobs/job_1", job(status="succeeded"))
    assert rubato("pause", "digits", "--wait").code == 1


def test_cancel_by_force(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/jobs/digits/cancel", Reply(job(status="stopping"), 202))
    assert rubato("cancel", "digits", "--force").code == 0
    assert service.requests[-1].json == {"force": True}
    assert rubato("cancel", "digits", "--grace", "1m30s").code == 0
    assert service.requests[-1].json == {"force": False, "grace_seconds": 90}


def test_a_checkpoint_is_asked_for(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/jobs/digits/checkpoint", Reply(job(), 202))
    assert "Asked digits for a checkpoint" in rubato("checkpoint", "digits").err


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103)])
def test_wait_tells_the_end_by_its_code(service: FakeService, rubato: Rubato, status: str, code: int) -> None:
    service.on("GET", "/jobs/digits", job(status="running"))
    service.on("GET", "/jobs/job_1", job(status=status))
    done = rubato("wait", "digits")
    assert (done.code, done.out.strip()) == (code, status)


def test_wait_for_a_status_and_not_in_time(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1", job())
    assert rubato("wait", "digits", "--for", "paused,running").code == 0
    assert rubato("wait", "digits", "--timeout", "0").code == 101


def test_a_wait_says_why_it_ended_without_what_was_waited_for(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1", job())
    late = rubato("wait", "digits", "--timeout", "0.1")
    assert (late.code, late.out) == (101, "running\n")
    assert late.err.splitlines()[-1] == "digits is running: not ended within 0.1 s."
    paused = rubato("wait", "digits", "--for", "paused,queued", "--timeout", "0")
    assert "digits is running: not paused or queued within 0 s." in paused.err
    service.on("GET", "/jobs/job_1", job(status="failed", message="w1.2 ran out of memory\nTraceback ..."))
    failed = rubato("wait", "digits")
    assert (failed.code, failed.out) == (100, "failed\n")
    said = ["digits failed: w1.2 ran out of memory", "  rubato explain digits   says more"]
    assert failed.err.splitlines()[-2:] == said
    assert "explain" not in rubato("wait", "digits", "--for", "failed").err


def test_a_wait_shows_where_the_job_is(service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PLAIN_EVERY_S", 0.0)
    states = iter([job(status="queued", step=0), job(), job(status="succeeded")])
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1", lambda _: Reply(next(states)))
    done = rubato("wait", "digits")
    assert (done.code, done.out.strip()) == (0, "succeeded")
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["queued", "running"]
