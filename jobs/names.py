"""How actors are named. All are named: without the dashboard a name is the only way to find an actor again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMESPACE = "rubato"
_CONTROLLER = "ctl-"
_WORKER = "w-"


@dataclass(frozen=True)
class ActorName:
    """A name, taken apart. `incarnation` is empty for a controller."""

    job_id: str
    incarnation: str = ""

    def __str__(self) -> str:
        return f"{_WORKER}{self.job_id}-{self.incarnation}" if self.incarnation else f"{_CONTROLLER}{self.job_id}"


def controller_name(job_id: str) -> str:
    """Of the controller of a job."""
    return str(ActorName(job_id))


def worker_name(job_id: str, incarnation: str) -> str:
    """Of a worker of a job."""
    return str(ActorName(job_id, incarnation))


def parse_name(name: str) -> ActorName | None:
    """What a name says; None where it is none of ours. Job ids hold no `-`."""
    if name.startswith(_CONTROLLER):
        job_id = name.removeprefix(_CONTROLLER)
        return ActorName(job_id) if job_id else None
    if name.startswith(_WORKER):
        job_id, _, incarnation = name.removeprefix(_WORKER).partition("-")
        return ActorName(job_id, incarnation) if job_id and incarnation else None
    return None


def parse_listing(listing: list[dict[str, Any]]) -> list[ActorName]:
    """Our actors in the answer of `ray.util.list_named_actors(all_namespaces=True)`."""
    names = (parse_name(str(entry["name"])) for entry in listing if entry.get("namespace") == NAMESPACE)
    return [name for name in names if name is not None]
