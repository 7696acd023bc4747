"""What every use-case needs, made once at start."""

from __future__ import annotations

from dataclasses import dataclass

from service.auth import Authority
from service.clock import Clock
from service.database import Database
from service.heartbeat import Heartbeat
from service.job_secrets import Redactors
from service.limits import Limits
from service.logs import LogStore
from service.notify import Hub
from service.packages import PackageStore
from service.settings import Settings
from service.storage import StorageDesk
from service.vault import Vault


@dataclass(frozen=True)
class Context:
    """The parts of a running service."""

    settings: Settings
    database: Database
    hub: Hub
    authority: Authority
    vault: Vault
    redactors: Redactors
    logs: LogStore
    packages: PackageStore
    storage: StorageDesk
    limits: Limits
    heartbeat: Heartbeat
    """Of the scheduling loop."""
    clock: Clock
    holder: str
    """What this process is called where it holds a role of which there is one among all replicas."""
