"""Webhooks of projects; reached as `Client.webhooks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rubato.client.paths import path_of
from rubato.client.transport import Pages, Transport


class Webhooks:
    """Addresses that are told what happens to jobs. Replies are plain dicts, as the API's description shows.

    All of it raises ApiError: `forbidden`, `not_found`, `name_taken`, `conflict` (they are off), `invalid_request`.
    """

    def __init__(self, transport: Transport, root: str, pages: Pages) -> None:
        self._transport = transport
        self._root = root
        self._pages = pages

    def create(self, name: str, url: str, events: Sequence[str] = (), *, project: str = "default") -> dict[str, Any]:
        """A new webhook; `secret` of the reply verifies its messages, and is never shown again.

        Args:
            name: unique in the project.
            url: `https://...`.
            events: of `status`, `scaling`, `failure`, `checkpoint`; none: all of them.
            project: whose jobs are told of.
        """
        body = {"name": name, "url": url, "events": list(events)}
        return dict(self._transport.send_json("POST", self._root + _path(project), body=body))

    def list(self, *, project: str = "default") -> list[dict[str, Any]]:
        """The webhooks of a project, without their secrets."""
        return list(self._pages(_path(project), None))

    def delete(self, name: str, *, project: str = "default") -> None:
        """Remove a webhook with its deliveries."""
        self._transport.send("DELETE", self._root + _path(project) + path_of(name))

    def test(self, name: str, *, project: str = "default", wait_s: float = 0.0) -> dict[str, Any]:
        """Send a test, once; its delivery, after it was tried or the wait is over."""
        path = self._root + _path(project) + path_of(name, "test")
        return dict(self._transport.send_json("POST", path, params={"wait": wait_s}, timeout_s=wait_s + 30.0))

    def deliveries(self, name: str, *, project: str = "default", status: str | None = None) -> Iterator[dict[str, Any]]:
        """What was sent, newest first, and what became of it: `pending`, `delivered` or `failed`."""
        yield from self._pages(_path(project) + path_of(name, "deliveries"), {"status": status})


def _path(project: str) -> str:
    return path_of("projects", project, "webhooks")
