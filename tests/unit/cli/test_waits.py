"""Every command that waits lives through a restart of the service, ends in time, and says how to look again."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from rubato.cli import live
from rubato.errors import ApiError, ServiceUnreachable
from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, job

AWAY = Reply({"code": "service_unavailable", "detail": "starting"}, 503)
WORKER = "/jobs/digits/workers/w1.3"
NODES = {"items": [{"node_id": "n1", "hostname": "host-1", "address": "10.0.0.1"}]}


def action(state: str, kind: str = "drain") -> dict[str, Any]:
    return {"worker_id": "w1.3", "kind": kind, "state": state, "message": "w1.3 left"}


def node(state: str) -> dict[str, Any]:
    return {**NODES["items"][0], "state": state, "workers_left": int(state == "draining")}


# Command line, what is asked for it, the replies of before and after, and how to look again.
WAITS: dict[str, tuple[str, Any, Any, str]] = {
    "wait digits": ("GET /jobs/job_1", job(), job(status="succeeded"), "`rubato wait job_1` waits on"),
    "pause digits --wait": ("GET /jobs/job_1", job(status="pausing"), job(status="paused"), "--for paused` waits on"),
    "resume digits --wait": ("GET /jobs/job_1", job(status="queued"), job(), "`rubato get job_1` looks once"),
    "cancel digits --wait": ("GET /jobs/job_1", job(status="stopping"), job(status="cancelled"), "--for cancelled`"),
    "worker drain digits w1.3 --wait": (
        f"POST {WORKER}/drain",
        action("pending"),
        action("done"),
        "`rubato worker ls digits` shows whether w1.3 is there",
    ),
    "worker kill digits w1.3 --wait": (
        f"POST {WORKER}/kill",
        action("pending", "kill"),
        action("done", "kill"),
        "`rubato worker ls digits` shows whether w1.3 is there",
    ),
    "node drain host-1 --wait": (
        "POST /nodes/n1/drain",
        node("draining"),
        node("drained"),
        "`rubato node drain host-1 --wait` waits on",
    ),
}


@pytest.fixture
def waits(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    for name in ("rubato.client.jobs.LOOK_S", "rubato.client.absence.AWAY_POLL_S", "rubato.cli.follow.ASK_S"):
        monkeypatch.setattr(name, 0.01)
    service.on("GET", "/jobs/digits", job())
    for verb in ("pause", "resume", "cancel"):
        service.on("POST", f"/jobs/digits/{verb}", job(status=f"{verb}-asked"))
    service.on("GET", "/clusters/default/nodes", NODES)
    return service


def on(service: FakeService, route: str, answer: Callable[[Request], Reply]) -> None:
    method, path = route.split()
    service.on(method, path, answer)


@pytest.mark.parametrize("line", WAITS)
def test_a_wait_lives_through_a_restart_of_the_service(waits: FakeService, rubato: Rubato, line: str) -> None:
    route, before, after, _ = WAITS[line]
    replies = iter([Reply(before), AWAY, AWAY, Reply(before), AWAY, Reply(after)])
    on(waits, route, lambda _: next(replies))
    done = rubato(*line.split())
    assert done.code == 0, done.err
    assert next(replies, None) is None


def test_a_wait_goes_on_while_the_service_is_away_for_longer_than_a_look(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rubato.client.jobs.LOOK_S", "rubato.cli.follow.PLAIN_EVERY_S", "rubato.client.absence.AWAY_POLL_S"):
        monkeypatch.setattr(name, 0.02)
    answers = iter([AWAY, AWAY, AWAY, Reply(job(status="succeeded"))])
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1", lambda _: next(answers))
    done = rubato("wait", "digits")
    assert (done.code, done.out.strip()) == (0, "succeeded")


@pytest.mark.parametrize("line", WAITS)
def test_a_service_that_stays_away_ends_a_wait(
    waits: FakeService, rubato: Rubato, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.client.absence.AWAY_S", -1.0)
    route, before, _, _ = WAITS[line]
    replies: Iterator[Reply] = iter([Reply(before), AWAY])
    on(waits, route, lambda _: next(replies))
    done = rubato(*line.split())
    assert (done.code, "starting" in done.err) == (1, True)


@pytest.mark.parametrize("line", WAITS)
def test_a_wait_ends_in_time(waits: FakeService, rubato: Rubato, line: str) -> None:
    route, before, _, _ = WAITS[line]
    on(waits, route, lambda _: Reply(before))
    assert rubato(*line.split(), "--timeout", "0.1").code == 101
    assert rubato(*line.split(), "--timeout", "soon").code == 2


@pytest.mark.parametrize("line", WAITS)
def test_ctrl_c_ends_a_wait_and_says_how_to_look_again(
    waits: FakeService, rubato: Rubato, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep

    def interrupted(*seconds: Any, **__: object) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        sleep(*seconds)  # of a thread that another test has left behind

    route, before, _, back = WAITS[line]
    on(waits, route, lambda _: Reply(before))
    # However long a busy machine takes for an answer, there is a rest behind it, in which the interrupt comes.
    monkeypatch.setattr("rubato.cli.follow.ASK_S", 60.0)
    monkeypatch.setattr("rubato.client.Client.wait", interrupted)
    monkeypatch.setattr("rubato.cli.follow.time.sleep", interrupted)
    done = rubato(*line.split())
    assert (done.code, back in done.err) == (101, True), done.err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_is_watched_lives_through_a_restart(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=100, height=20, color_system=None)
    monkeypatch.setattr(live, "stdout_console", lambda: console)
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    gone, starts = ServiceUnreachable("gone"), ApiError("starting", status=503)
    pictures = iter([live.Picture(["first"]), gone, starts, live.Picture(["last"], is_last=True)])

    def take() -> live.Picture:
        found = next(pictures)
        if isinstance(found, Exception):
            raise found
        return found

    live.show(take, watch=True)
    assert shown.getvalue().split("\x1b[?1049l")[-1].split() == (["last"] if is_terminal else ["first", "last"])
    for error, away_s in ((ApiError("broken", status=500), 60.0), (gone, -1.0))[: 1 if is_terminal else 2]:
        monkeypatch.setattr("rubato.client.absence.AWAY_S", away_s)
        pictures = iter([live.Picture(["first"]), error])
        with pytest.raises(type(error)):
            live.show(take, watch=True)
