"""Which events a webhook can ask for, and what is sent of one. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from rubato.wire.events import EventKind
from rubato.wire.status import Status
from service.clock import to_rfc3339

MAX_BODY_BYTES = 64 * 1024
"""Of a larger message the event's data are left out: many endpoints take no more."""
TEXT_LENGTH = 500
TEST_KIND = "webhook.test"


class Topic(StrEnum):
    """What a webhook can ask for."""

    STATUS = "status"
    """A job came to another status."""
    SCALING = "scaling"
    """Another number of workers was asked for, or trains now."""
    FAILURE = "failure"
    """A job failed or restarts, a worker was lost, states differ, a checkpoint could not be written or read."""
    CHECKPOINT = "checkpoint"
    """A checkpoint was committed, deleted, or could not be written or read."""
    ASKED = "asked"
    """Nothing of every job: only what jobs ask it to be told, in the `notifications` of their spec."""


_TOPICS: dict[str, frozenset[Topic]] = {
    EventKind.STATUS: frozenset({Topic.STATUS}),
    EventKind.SCALE_REQUESTED: frozenset({Topic.SCALING}),
    EventKind.WORKER_LOST: frozenset({Topic.FAILURE}),
    EventKind.RESTARTING: frozenset({Topic.FAILURE}),
    EventKind.DIVERGED: frozenset({Topic.FAILURE}),
    EventKind.CHECKPOINT_COMMITTED: frozenset({Topic.CHECKPOINT}),
    EventKind.CHECKPOINT_DELETED: frozenset({Topic.CHECKPOINT}),
    EventKind.CHECKPOINT_FAILED: frozenset({Topic.CHECKPOINT, Topic.FAILURE}),
    EventKind.CHECKPOINT_CORRUPT: frozenset({Topic.CHECKPOINT, Topic.FAILURE}),
}


def topics_of(kind: str, data: Mapping[str, Any]) -> frozenset[Topic]:
    """Under which topics an event is told; none: it is not."""
    if kind == EventKind.STATUS and data.get("to") == Status.FAILED:
        return frozenset({Topic.STATUS, Topic.FAILURE})
    if kind == EventKind.GENERATION_FORMED:
        return frozenset({Topic.SCALING} if data.get("cause") in ("scale_up", "scale_down") else ())
    return _TOPICS.get(kind, frozenset())


def named_for(notifications: Iterable[Mapping[str, Any]], kind: str, data: Mapping[str, Any]) -> frozenset[str]:
    """The webhooks that a job asks to be told of an event, by name.

    Args:
        notifications: of its spec, as JSON.
        kind: of the event.
        data: of the event.
    """
    if kind != EventKind.STATUS:
        return frozenset()
    return frozenset(one["webhook"] for one in notifications if data.get("to") in one["on"])


def message_of(job: Mapping[str, str], event: Mapping[str, Any]) -> str:
    """The body that is sent, and signed, as it stands.

    Args:
        job: id, name and project.
        event: a row of the event log.
    """
    shown = {name: event.get(name) for name in ("position", "message", "step", "generation", "attempt", "data")}
    text = chat_text(f"{job['project']}/{job['name']}", str(event.get("message") or event["kind"]))
    body = _encode(event, {"job": dict(job), "event": shown}, text)
    if len(body.encode()) > MAX_BODY_BYTES:
        body = _encode(event, {"job": dict(job), "event": {**shown, "data": None}}, text)
    return body


def chat_text(of: str, message: str) -> str:
    """A line for chats, which show the `text` of what is posted to them. Programs write into messages: what would be
    markup there (`<!channel>` calls everybody) is escaped as Slack and those like it want it.
    """
    line = f"{of}: {message}"[:TEXT_LENGTH]
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def trial_message(project: str, webhook: str, event: Mapping[str, Any]) -> str:
    """The body of a test."""
    text = chat_text(project, f"a test of the webhook {webhook}")
    return _encode(event, {"project": project, "webhook": webhook}, text)


def _encode(event: Mapping[str, Any], data: dict[str, Any], text: str) -> str:
    message = {"type": event["kind"], "timestamp": to_rfc3339(event["time"]), "text": text, "data": data}
    return json.dumps(message, separators=(",", ":"))
