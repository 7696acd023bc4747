from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, job

WORKERS = {
    "items": [
        {"worker_id": "w1.1", "rank": 0, "state": "active", "node": "host-1", "pid": 7},
        {"worker_id": "w1.3", "rank": 1, "state": "active", "node": "host-2", "pid": 8},
        {"worker_id": "w1.4", "rank": None, "state": "standby", "node": "host-2", "pid": 9},
    ]
}


def action(kind: str, state: str, message: str = "") -> dict[str, Any]:
    return {"number": 4, "worker_id": "w1.3", "kind": kind, "state": state, "message": message}


def node(name: str, state: str = "ready", left: int = 0) -> dict[str, Any]:
    sizes = {"cpu": 8.0, "cpu_used": 2.0, "gpu": 0, "gpu_used": 0}
    where = {"node_id": f"{name}{'0' * 20}", "hostname": f"host-{name}", "address": f"10.0.0.{ord(name[0])}"}
    return {**where, **sizes, "state": state, "workers_left": left, "jobs": [{"name": "digits"}] if left else []}


def test_workers_are_listed(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits/workers", WORKERS)
    assert [line.split()[0] for line in rubato("worker", "ls", "digits").out.splitlines()[1:]] == [
        "w1.1",
        "w1.3",
        "w1.4",
    ]
    assert rubato("worker", "ls", "digits", "--json").json[2]["state"] == "standby"


@pytest.mark.parametrize("kind", ["drain", "kill"])
def test_a_worker_is_named_by_id_or_by_present_rank(service: FakeService, rubato: Rubato, kind: str) -> None:
    service.on("GET", "/jobs/digits/workers", WORKERS)
    service.on("POST", f"/jobs/digits/workers/w1.3/{kind}", Reply(action(kind, "pending"), status=202))
    done = rubato("worker", kind, "digits", "1")
    assert (done.code, "Rank 1 is w1.3." in done.err) == (0, True)
    assert len(service.asked("POST", f"/jobs/digits/workers/w1.3/{kind}")) == 1
    assert "idempotency-key" in {name.lower() for name in service.requests[-1].headers}
    assert rubato("worker", kind, "digits", "w1.3").code == 0
    service.on("GET", "/jobs/digits", job())
    missing = rubato("worker", kind, "digits", "7")
    told = "error: no worker of digits has rank 7 now: see `rubato worker ls digits`\n"
    assert (missing.code, missing.err) == (102, told)
    service.on("GET", "/jobs/digits", job(status="paused"))
    service.on("GET", "/jobs/digits/workers", {"items": []})
    paused = rubato("worker", kind, "digits", "0")
    assert (paused.code, paused.err) == (102, "error: no worker of digits has rank 0 now: digits is paused\n")


def test_waiting_for_a_drain_ends_with_what_came_of_it(service: FakeService, rubato: Rubato) -> None:
    replies = iter([action("drain", "pending"), action("drain", "pending"), action("drain", "done", "w1.3 left")])
    service.on("POST", "/jobs/digits/workers/w1.3/drain", lambda _: Reply(next(replies)))
    done = rubato("worker", "drain", "digits", "w1.3", "--wait")
    assert (done.code, "done: w1.3 left." in done.err) == (0, True)
    service.on("POST", "/jobs/digits/workers/w1.3/drain", action("drain", "gone", "w1.3 was killed by SIGKILL"))
    assert rubato("worker", "drain", "digits", "w1.3").code == 1


def test_a_drain_that_was_withdrawn_is_not_done(service: FakeService, rubato: Rubato) -> None:
    replies = iter([action("drain", "pending"), action("drain", "withdrawn", "the node takes work again")])
    service.on("POST", "/jobs/digits/workers/w1.3/drain", lambda _: Reply(next(replies)))
    withdrawn = rubato("worker", "drain", "digits", "w1.3", "--wait")
    assert (withdrawn.code, withdrawn.err) == (1, "withdrawn: the node takes work again.\n")


def test_a_stack_is_printed_as_it_is(service: FakeService, rubato: Rubato) -> None:
    text = "w1.3 (rank 1), pid 8\n\nThread MainThread (most recent call first):\n"
    service.on("GET", "/jobs/digits/workers/w1.3/stack", Reply(content=text.encode()))
    assert rubato("worker", "stack", "digits", "w1.3").out == text
    service.on("GET", "/jobs/digits/workers/w1.3/stack", Reply(status=202, content=b"ask again"))
    assert rubato("worker", "stack", "digits", "w1.3").code == 101


def test_nodes_are_listed_and_found_by_any_of_their_names(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/clusters/default/nodes", {"items": [node("a"), node("ab", "draining", 2), node("b")]})
    listed = rubato("node", "list").out.splitlines()
    assert listed[2].split() == ["ab0000000000", "host-ab", "draining", "2/8", "-", "-", "2", "digits"]
    service.on("POST", "/nodes/*", lambda request: Reply(node(request.path.split("/")[-2][0], "cordoned")))
    for name in ("b", "b0000", "host-b", "10.0.0.98"):
        assert rubato("node", "cordon", name).code == 0
        assert service.requests[-1].path.endswith(f"/nodes/b{'0' * 20}/cordon")
    ambiguous = rubato("node", "uncordon", "a")
    assert (ambiguous.code, "2 nodes of default called 'a'" in ambiguous.err) == (2, True)
    assert "no node of default called 'z'" in rubato("node", "uncordon", "z").err


def test_waiting_for_a_node_tells_how_many_are_left(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/clusters/default/nodes", {"items": [node("a")]})
    lefts = itertools.chain([2, 1], itertools.repeat(0))

    def drain(_: Request) -> Reply:
        left = next(lefts)
        return Reply(node("a", "draining" if left else "drained", left), status=202 if left else 200)

    service.on("POST", "/nodes/*", drain)
    done = rubato("node", "drain", "host-a", "--wait")
    assert done.code == 0
    assert "1 left." in done.err
    assert "host-a is drained." in done.err
