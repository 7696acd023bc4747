"""Secrets of projects; reached as `Client.secrets`."""

from __future__ import annotations

from typing import Any

from rubato.client.paths import path_of
from rubato.client.transport import Pages, Transport


class Secrets:
    """Values that jobs are given and nobody is shown. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found`, `invalid_request`, `not_ready`.
    """

    def __init__(self, transport: Transport, root: str, pages: Pages) -> None:
        self._transport = transport
        self._root = root
        self._pages = pages

    def set(self, name: str, value: str, *, project: str = "default") -> dict[str, Any]:
        """Store a value, in place of another one. Attempts that begin from now on get it."""
        path = self._root + _path(project) + path_of(name)
        return dict(self._transport.send_json("PUT", path, body={"value": value}))

    def list(self, *, project: str = "default") -> list[dict[str, Any]]:
        """The secrets of a project: `name`, `created_at`, `updated_at`, `updated_by`."""
        return list(self._pages(_path(project), None))

    def delete(self, name: str, *, project: str = "default") -> None:
        """Remove a secret; the next attempt of a job that needs it fails."""
        self._transport.send("DELETE", self._root + _path(project) + path_of(name))


def _path(project: str) -> str:
    return path_of("projects", project, "secrets")
