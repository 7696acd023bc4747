"""Secrets of projects; reached as `Client.secrets`."""

from __future__ import annotations

from rubato.client.conversation import Async, Awaiting, Blocking, Call, Sync, call
from rubato.client.models import Row, Rows
from rubato.client.paths import path_of
from rubato.client.transport import Transport


class Secrets:
    """Values that jobs are given and nobody is shown. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found`, `invalid_request`, `not_ready`.
    """

    _transport: Transport

    @call
    def set(self, name: str, value: str, *, project: str = "default") -> Call[Row]:
        """Store a value, in place of another one. Attempts that begin from now on get it."""
        path = _path(project) + path_of(name)
        return dict((yield from self._transport.json("PUT", path, body={"value": value})))

    @call
    def list(self, *, project: str = "default") -> Call[Rows]:
        """The secrets of a project: `name`, `created_at`, `updated_at`, `updated_by`."""
        return (yield from self._transport.all_of(_path(project), None))

    @call
    def delete(self, name: str, *, project: str = "default") -> Call[None]:
        """Remove a secret; the next attempt of a job that needs it fails."""
        (yield from self._transport.send("DELETE", _path(project) + path_of(name)))


class SyncSecrets(Secrets, Sync):
    """With calls that block."""

    def __init__(self, transport: Transport, hands: Blocking) -> None:
        self._transport, self._hands = transport, hands


class AsyncSecrets(Secrets, Async):
    """With calls that are awaited."""

    def __init__(self, transport: Transport, hands: Awaiting) -> None:
        self._transport, self._hands = transport, hands


def _path(project: str) -> str:
    return path_of("projects", project, "secrets")
