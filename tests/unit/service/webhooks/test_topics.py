from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rubato.wire.events import EventKind
from service.webhooks.topics import MAX_BODY_BYTES, Topic, message_of, named_for, topics_of

JOB = {"id": "job_1", "name": "digits", "project": "default"}


def event(**changes: Any) -> dict[str, Any]:
    now = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    return {"position": 7, "time": now, "kind": "worker.lost", "message": "it happened", "data": {}, **changes}


@pytest.mark.parametrize(
    ("kind", "data", "topics"),
    [
        ("job.status", {"to": "running"}, {Topic.STATUS}),
        ("job.status", {"to": "failed"}, {Topic.STATUS, Topic.FAILURE}),
        ("generation.formed", {"cause": "scale_down"}, {Topic.SCALING}),
        ("generation.formed", {"cause": "recovery"}, set()),
        ("checkpoint.corrupt", {}, {Topic.CHECKPOINT, Topic.FAILURE}),
        ("worker.ready", {}, set()),
        ("of.a.newer.controller", {"cause": ["scale_up"]}, set()),
    ],
)
def test_topics(kind: str, data: dict[str, Any], topics: set[Topic]) -> None:
    assert topics_of(kind, data) == topics


def test_a_job_names_webhooks_by_status() -> None:
    asked = [{"on": ["failed", "paused"], "webhook": "team"}, {"on": ["failed"], "webhook": "duty"}]
    assert named_for(asked, "job.status", {"to": "failed"}) == {"team", "duty"}
    assert named_for(asked, "job.status", {"to": "paused"}) == {"team"}
    assert named_for(asked, "job.status", {"to": "running"}) == set()
    assert named_for(asked, "worker.lost", {"to": "failed"}) == set()
    assert named_for([], "job.status", {"to": "failed"}) == set()


def test_every_topic_has_an_event() -> None:
    found = [topics_of(kind, {"to": "failed", "cause": "scale_up"}) for kind in EventKind]
    assert frozenset().union(*found) == set(Topic) - {Topic.ASKED}


def test_of_a_large_event_the_data_are_left_out() -> None:
    large = event(data={"files": ["x" * 100] * 1000})
    assert len(json.dumps(large["data"])) > MAX_BODY_BYTES
    body = message_of(JOB, large)
    assert len(body) < MAX_BODY_BYTES
    assert json.loads(body)["data"]["event"] | {"data": None} == json.loads(body)["data"]["event"]
    small = json.loads(message_of(JOB, event(data={"a": 1})))
    assert small["data"]["event"]["data"] == {"a": 1}
    assert (small["type"], small["data"]["job"]) == ("worker.lost", JOB)


def test_chats_show_a_line_in_which_no_program_can_write_markup() -> None:
    message = json.loads(message_of(JOB, event(message="<!channel> lost & found " + "x" * 1000)))
    assert message["text"].startswith("default/digits: &lt;!channel&gt; lost &amp; found xx")
    assert len(message["text"]) < 600
