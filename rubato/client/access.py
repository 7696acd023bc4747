"""Projects, users, tokens and the trail of changes; reached as `Client.access`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from rubato.client.paths import path_of
from rubato.client.transport import Pages, Transport


class Access:
    """Who may see and do what. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found`, `name_taken`, `invalid_request`.
    """

    def __init__(self, transport: Transport, root: str, pages: Pages) -> None:
        self._transport = transport
        self._root = root
        self._pages = pages

    def projects(self) -> list[dict[str, Any]]:
        """Your projects, with your role in each."""
        return list(self._pages("/projects", None))

    def project(self, name: str) -> dict[str, Any]:
        """One project: `members`, `quota` and `use`."""
        return dict(self._send("GET", path_of("projects", name)))

    def create_project(self, name: str, description: str = "") -> dict[str, Any]:
        """A new project."""
        return dict(self._create("/projects", {"name": name, "description": description}))

    def update_project(
        self, name: str, *, description: str | None = None, quota: Mapping[str, int | None] | None = None
    ) -> dict[str, Any]:
        """Change a project; only an admin of the service may.

        Args:
            name: of the project.
            description: None leaves it.
            quota: any of `max_slots`, `max_queued` and `max_priority`; None takes a limit away, what is left out stays.
        """
        body = {"description": description, "quota": dict(quota or {})}
        return dict(self._send("PATCH", path_of("projects", name), body))

    def delete_project(self, name: str) -> None:
        """Remove a project without jobs."""
        self._transport.send("DELETE", self._root + path_of("projects", name))

    def grant(self, project: str, user: str, role: str) -> dict[str, Any]:
        """Give a user the role viewer, editor or admin in a project, in place of another one."""
        return dict(self._send("PUT", path_of("projects", project, "members", user), {"role": role}))

    def withdraw(self, project: str, user: str) -> None:
        """Take a user's role in a project away."""
        self._transport.send("DELETE", self._root + path_of("projects", project, "members", user))

    def users(self) -> list[dict[str, Any]]:
        """All users."""
        return list(self._pages("/users", None))

    def create_user(self, name: str, *, is_admin: bool = False) -> dict[str, Any]:
        """A new user, who can sign in once there is a token."""
        return dict(self._create("/users", {"name": name, "is_admin": is_admin}))

    def update_user(
        self, name: str, *, is_admin: bool | None = None, is_disabled: bool | None = None
    ) -> dict[str, Any]:
        """Make a user an admin of the service or not, or shut the user out or in; None leaves it."""
        return dict(self._send("PATCH", path_of("users", name), {"is_admin": is_admin, "is_disabled": is_disabled}))

    def tokens(self) -> list[dict[str, Any]]:
        """Your tokens, without their secrets; an admin's list holds all."""
        return list(self._pages("/tokens", None))

    def create_token(
        self, name: str, *, user: str | None = None, role: str = "user", expires_in_s: float | None = None
    ) -> dict[str, Any]:
        """A new token; `token` of the reply is its secret, which is never shown again.

        Args:
            name: what it is for.
            user: whose it is; None: yours. Others' tokens are made by an admin.
            role: `user`, or (by an admin, for no user) `cluster` or `scraper`.
            expires_in_s: seconds; None: it never expires.
        """
        body = {"name": name, "user": user, "role": role, "expires_in": expires_in_s}
        return dict(self._send("POST", "/tokens", body))

    def revoke_token(self, token_id: str) -> None:
        """Make a token worthless; its browser sessions and streams end."""
        self._transport.send("DELETE", self._root + path_of("tokens", token_id))

    def audit(self, *, actor: str | None = None, action: str | None = None) -> Iterator[dict[str, Any]]:
        """What people changed, newest first."""
        yield from self._pages("/audit", {"actor": actor, "action": action})

    def _create(self, path: str, body: Any) -> Any:
        """With a key: sent again after a lost reply it answers as the first time, and not that the name is taken."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._transport.send_json("POST", self._root + path, body=body, headers=headers)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        return self._transport.send_json(method, self._root + path, body=body)
