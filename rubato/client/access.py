"""Projects, users, tokens and the trail of changes; reached as `Client.access`."""

from __future__ import annotations

from collections.abc import Mapping

from rubato.client.conversation import Async, Awaiting, Blocking, Call, Flow, Sync, call, flow
from rubato.client.models import Row, Rows
from rubato.client.paths import path_of
from rubato.client.transport import Transport


class Access:
    """Who may see and do what. Replies are plain dicts, as the API's description shows them.

    All of it raises ApiError: `forbidden`, `not_found`, `name_taken`, `invalid_request`.
    """

    _transport: Transport

    @call
    def projects(self) -> Call[Rows]:
        """Your projects, with your role in each."""
        return (yield from self._transport.all_of("/projects", None))

    @call
    def project(self, name: str) -> Call[Row]:
        """One project: `members`, `quota` and `use`."""
        return dict((yield from self._transport.json("GET", path_of("projects", name))))

    @call
    def create_project(self, name: str, description: str = "") -> Call[Row]:
        """A new project."""
        return dict((yield from self._transport.create("/projects", {"name": name, "description": description})))

    @call
    def update_project(
        self, name: str, *, description: str | None = None, quota: Mapping[str, int | None] | None = None
    ) -> Call[Row]:
        """Change a project; only an admin of the service may.

        Args:
            name: of the project.
            description: None leaves it.
            quota: any of `max_slots`, `max_queued` and `max_priority`; None takes a limit away, what is left out stays.
        """
        body = {"description": description, "quota": dict(quota or {})}
        return dict((yield from self._transport.json("PATCH", path_of("projects", name), body)))

    @call
    def delete_project(self, name: str) -> Call[None]:
        """Remove a project without jobs."""
        (yield from self._transport.send("DELETE", path_of("projects", name)))

    @call
    def grant(self, project: str, user: str, role: str) -> Call[Row]:
        """Give a user the role viewer, editor or admin in a project, in place of another one."""
        path = path_of("projects", project, "members", user)
        return dict((yield from self._transport.json("PUT", path, {"role": role})))

    @call
    def withdraw(self, project: str, user: str) -> Call[None]:
        """Take a user's role in a project away."""
        (yield from self._transport.send("DELETE", path_of("projects", project, "members", user)))

    @call
    def users(self) -> Call[Rows]:
        """All users."""
        return (yield from self._transport.all_of("/users", None))

    @call
    def create_user(self, name: str, *, is_admin: bool = False) -> Call[Row]:
        """A new user, who can sign in once there is a token."""
        return dict((yield from self._transport.create("/users", {"name": name, "is_admin": is_admin})))

    @call
    def update_user(self, name: str, *, is_admin: bool | None = None, is_disabled: bool | None = None) -> Call[Row]:
        """Make a user an admin of the service or not, or shut the user out or in; None leaves it."""
        body = {"is_admin": is_admin, "is_disabled": is_disabled}
        return dict((yield from self._transport.json("PATCH", path_of("users", name), body)))

    @call
    def tokens(self) -> Call[Rows]:
        """Your tokens, without their secrets; an admin's list holds all."""
        return (yield from self._transport.all_of("/tokens", None))

    @call
    def create_token(
        self,
        name: str,
        *,
        user: str | None = None,
        role: str = "user",
        expires_in_s: float | None = None,
        cluster: str | None = None,
    ) -> Call[Row]:
        """A new token; `token` of the reply is its secret, which is never shown again.

        Args:
            name: what it is for.
            user: whose it is; None: yours. Others' tokens are made by an admin.
            role: `user`, or (by an admin, for no user) `cluster` or `scraper`.
            expires_in_s: seconds; None: it never expires.
            cluster: of the role `cluster`: the only cluster that it speaks for; None: any.
        """
        body = {"name": name, "user": user, "role": role, "expires_in": expires_in_s}
        body |= {} if cluster is None else {"cluster": cluster}
        return dict((yield from self._transport.json("POST", "/tokens", body)))

    @call
    def revoke_token(self, token_id: str) -> Call[None]:
        """Make a token worthless; its browser sessions and streams end."""
        (yield from self._transport.send("DELETE", path_of("tokens", token_id)))

    @flow
    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        job_id: str | None = None,
        limit: int | None = None,
    ) -> Flow[Row]:
        """What people changed, newest first; only an admin of the service may look.

        Args:
            actor: name of a user, or of a token of the home.
            action: such as `job.submitted`.
            job_id: also of a job that was deleted.
            limit: at most so many; None: all.
        """
        wanted = {"actor": actor, "action": action, "job_id": job_id}
        yield from self._transport.pages("/audit", wanted, limit)


class SyncAccess(Access, Sync):
    """With calls that block."""

    def __init__(self, transport: Transport, hands: Blocking) -> None:
        self._transport, self._hands = transport, hands


class AsyncAccess(Access, Async):
    """With calls that are awaited."""

    def __init__(self, transport: Transport, hands: Awaiting) -> None:
        self._transport, self._hands = transport, hands
