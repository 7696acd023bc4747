"""Webhooks of projects; reached as `Client.webhooks`."""

from __future__ import annotations

from collections.abc import Sequence

from rubato.client.conversation import Async, Awaiting, Blocking, Call, Flow, Sync, call, flow
from rubato.client.models import Row, Rows
from rubato.client.paths import path_of
from rubato.client.transport import Transport


class Webhooks:
    """Addresses that are told what happens to jobs. Replies are plain dicts, as the API's description shows.

    All of it raises ApiError: `forbidden`, `not_found`, `name_taken`, `conflict` (they are off), `invalid_request`.
    """

    _transport: Transport

    @call
    def create(self, name: str, url: str, events: Sequence[str] = (), *, project: str = "default") -> Call[Row]:
        """A new webhook; `secret` of the reply verifies its messages, and is never shown again.

        Args:
            name: unique in the project.
            url: `https://...`.
            events: of `status`, `scaling`, `failure`, `checkpoint`; none: all of them; `asked` alone: only what
                jobs ask it to be told in their `notifications`.
            project: whose jobs are told of.
        """
        body = {"name": name, "url": url, "events": list(events)}
        return dict((yield from self._transport.json("POST", _path(project), body=body)))

    @call
    def list(self, *, project: str = "default") -> Call[Rows]:
        """The webhooks of a project, without their secrets."""
        return (yield from self._transport.all_of(_path(project), None))

    @call
    def delete(self, name: str, *, project: str = "default") -> Call[None]:
        """Remove a webhook with its deliveries."""
        (yield from self._transport.send("DELETE", _path(project) + path_of(name)))

    @call
    def test(self, name: str, *, project: str = "default", wait_s: float = 0.0) -> Call[Row]:
        """Send a test, once; its delivery, after it was tried or the wait is over."""
        path = _path(project) + path_of(name, "test")
        return dict((yield from self._transport.json("POST", path, params={"wait": wait_s}, timeout_s=wait_s + 30.0)))

    @flow
    def deliveries(self, name: str, *, project: str = "default", status: str | None = None) -> Flow[Row]:
        """What was sent, newest first, and what became of it: `pending`, `delivered` or `failed`."""
        yield from self._transport.pages(_path(project) + path_of(name, "deliveries"), {"status": status})


class SyncWebhooks(Webhooks, Sync):
    """With calls that block."""

    def __init__(self, transport: Transport, hands: Blocking) -> None:
        self._transport, self._hands = transport, hands


class AsyncWebhooks(Webhooks, Async):
    """With calls that are awaited."""

    def __init__(self, transport: Transport, hands: Awaiting) -> None:
        self._transport, self._hands = transport, hands


def _path(project: str) -> str:
    return path_of("projects", project, "webhooks")
