"""Who may do what: the roles of callers, and the roles of people in projects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a caller is. Each route names those it takes; there is no order among them."""

    ADMIN = "admin"
    """Of the whole service: every project, users, tokens, settings."""
    USER = "user"
    """A person with a role in some projects."""
    CLUSTER = "cluster"
    ATTEMPT = "attempt"
    TICKET = "ticket"
    SCRAPER = "scraper"
    """Reads /metrics and nothing else."""


class ProjectRole(StrEnum):
    """What a person may do in a project; each includes those before it."""

    VIEWER = "viewer"
    """See everything of its jobs."""
    EDITOR = "editor"
    """Submit, change, scale, end."""
    ADMIN = "admin"
    """Say who else may."""

    @property
    def rank(self) -> int:
        """Position in that order."""
        return list(ProjectRole).index(self)

    @property
    def with_article(self) -> str:
        """As a sentence has it."""
        return f"a {self}" if self is ProjectRole.VIEWER else f"an {self}"

    def includes(self, other: ProjectRole) -> bool:
        """Whether this role may all that the other may."""
        return self.rank >= other.rank


@dataclass(frozen=True)
class Principal:
    """The caller, once known."""

    role: Role
    name: str
    job_id: str | None = None
    """Of an attempt token or a job ticket: the only job it is good for."""
    attempt: int = 0
    token_id: str | None = None
    user_id: str | None = None
    cluster_id: str | None = None
    """Of a cluster's token: the only cluster it speaks for; None: for any."""
    projects: Mapping[str, ProjectRole] = field(default_factory=dict)
    """Of a user: the role in each project; an admin has all of them."""
    is_cookie: bool = False

    @property
    def person(self) -> str | None:
        """What the limits of people are counted by; None: a machine, which its protocol paces."""
        return (self.user_id or self.token_id) if self.role in (Role.ADMIN, Role.USER) else None

    @property
    def is_admin(self) -> bool:
        """Whether everything may be seen and done."""
        return self.role is Role.ADMIN

    @property
    def visible_projects(self) -> frozenset[str] | None:
        """Projects whose jobs may be seen; None: all."""
        return None if self.is_admin else frozenset(self.projects)

    def role_in(self, project: str) -> ProjectRole | None:
        """The role in a project; None: the project is not to be known of."""
        return ProjectRole.ADMIN if self.is_admin else self.projects.get(project)

    def has_anywhere(self, needed: ProjectRole) -> bool:
        """Whether there is a project with at least this role."""
        return self.is_admin or any(role.includes(needed) for role in self.projects.values())
