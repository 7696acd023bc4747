"""Settings of the service, read from the environment (`RUBATO_...`) once at start."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rubato.errors import UserError
from rubato.wire.storage import StorageUri, parse_storage
from rubato.wire.units import parse_duration_s

DEFAULT_PORT = 8642


def _read_duration(value: object) -> object:
    """As in a job's spec; what begins with a P is ISO 8601, which pydantic reads."""
    if not isinstance(value, str) or value.strip().upper().startswith("P"):
        return value
    return timedelta(seconds=parse_duration_s(value))


Duration = Annotated[timedelta, BeforeValidator(_read_duration)]


class Settings(BaseSettings):
    """Where things live and how long things last."""

    model_config = SettingsConfigDict(env_prefix="RUBATO_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=lambda: Path.home() / ".rubato")
    """Folder of everything that lasts: tokens, database, logs, packages, checkpoints."""
    database_url: str = ""
    """`sqlite+aiosqlite:///...` or `postgresql+psycopg://...`; default: `rubato.db` in the home."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    storage: str = ""
    """Checkpoint root that service and workers see: a folder, file:// or s3://; default: `checkpoints` in the home."""
    secret_keys_file: Path | None = None
    """Keys that seal secrets, for replicas to share, see `docs/how-to/secrets.md`; default: `secret-keys` in the
    home."""
    web_dist: Path = Field(default_factory=lambda: Path(__file__).resolve().parent.parent / "web" / "dist")
    """Folder of the built page."""
    behind_tls_proxy: bool = False
    """Says that a proxy in front speaks TLS: allows a bind beyond loopback, Secure cookies, https links."""
    published_on_loopback: bool = False
    """Says that the port of this container is published on its machine's loopback only: allows a bind beyond loopback,
    in clear."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names the service answers to, besides loopback and `host`; a JSON list in the environment."""

    webhooks: bool = False
    """Whether webhooks may be made and are delivered: the service then connects to addresses that users name."""
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that webhooks may lead to besides public addresses, such as `["10.1.2.0/24"]`; a JSON list."""
    webhook_ca_file: Path | None = None
    """Certificates of authorities that webhooks may be signed by besides the system's, as in a closed network."""

    lease: Duration = timedelta(seconds=30)
    """How long a controller may be silent before another may be made; every report and desired poll renews it."""
    lease_margin: Duration = timedelta(seconds=15)
    """Extra wait before a successor gets its attempt without proof that the predecessor is gone."""
    agent_lease: Duration = timedelta(seconds=15)
    """How long one agent acts for its cluster; every sync renews it."""
    cluster_offline_after: Duration = timedelta(seconds=30)
    """Silence of all agents after which a cluster counts as offline."""
    forced_stop_after: Duration = timedelta(seconds=120)
    """Silence after which a forced cancel or pause ends, and a job that nobody began is placed anew, once its cluster
    counts as offline: lease and the workers' dead-man's switch (60 s) have run out."""
    scheduler_interval: Duration = timedelta(seconds=1)
    """How often the scheduler looks when nothing wakes it."""
    poll_interval: Duration = timedelta(seconds=0.5)
    """How often a waiting request looks at the database while other replicas' notifications do not come in; where many
    wait more rarely, 20 looks a second in all."""
    stream_limit: Duration = timedelta(minutes=10)
    """Longest life of one event stream; the client reconnects and replays."""
    keep_alive: Duration = timedelta(seconds=10)
    """Silence on a stream after which a comment is sent."""
    stalled_after: Duration = timedelta(seconds=60)
    """Who takes nothing for so long of what is sent, though it waits for them, is disconnected; streams are resumed."""

    max_body_bytes: int = 8 * 1024 * 1024
    """Largest JSON body: a report of some thousand log lines."""
    max_spec_bytes: int = 256 * 1024
    """Largest job spec: the YAML parser is written in Python, and a megabyte would take seconds."""
    max_package_bytes: int = 50_000_000
    """Largest packed working folder."""
    requests_per_second: float = Field(default=200.0, gt=0)
    """Of one person's token, at each replica; agents and controllers are paced by their protocol instead."""
    request_burst: int = Field(default=2_000, ge=1)
    """Requests that a token may make at once after it was quiet."""
    failed_sign_ins_per_minute: float = Field(default=30.0, gt=0)
    """Tokens and login links that are no good, of one address, at each replica: so many at once, then at this rate."""
    streams_per_user: int = Field(default=100, ge=1)
    """Event streams that one person may have open at each replica."""
    max_job_log_bytes: int = Field(default=2 * 1024**3, ge=0)
    """Log lines that are stored of one job; further ones are dropped, and a last line says so."""
    max_job_metric_rows: int = Field(default=10_000_000, ge=0)
    """Metric rows that are stored of one job; of further ones only the newest values are shown."""
    log_segment_bytes: int = 8 * 1024 * 1024
    """Size at which a job's log goes on in a new file."""
    keep_logs_days: float | None = Field(default=None, gt=0)
    """Days after its end for which a job's log lines are kept; unset: until it is deleted. So also what follows."""
    keep_metrics_days: float | None = Field(default=None, gt=0)
    """Of its metrics; the last values stay with the job."""
    keep_events_days: float | None = Field(default=None, gt=0)
    """Of its events."""
    keep_audit_days: float | None = Field(default=None, gt=0)
    """Days for which the trail of what people changed is kept; unset: for good."""
    keep_packages_days: float = Field(default=7, gt=0)
    """Days after its upload for which a package is kept that no job has (any more)."""

    @field_validator("home", "web_dist")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        # The model is frozen for its readers; defaults that depend on the home are filled in before anyone sees it.
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite+aiosqlite:///{self.home / 'rubato.db'}")
        if not self.storage:
            object.__setattr__(self, "storage", (self.home / "checkpoints").as_uri())
        try:
            where = parse_storage(self.storage)
        except UserError as error:
            raise ValueError(f"RUBATO_STORAGE: {error}") from error
        if where.is_local and not where.path.startswith("/"):
            raise ValueError(f"RUBATO_STORAGE must be absolute, for all nodes to find it; got {self.storage!r}")
        if not self.database_url.startswith(("sqlite+aiosqlite://", "postgresql+psycopg://")):
            raise ValueError(
                "RUBATO_DATABASE_URL must begin with sqlite+aiosqlite:// or postgresql+psycopg://; "
                f"got the scheme {self.database_url.split(':', 1)[0]!r}"
            )
        if not (self.is_loopback or self.behind_tls_proxy or self.published_on_loopback):
            raise ValueError(
                f"refusing to listen on {self.host!r} in clear: tokens would be readable. Listen on 127.0.0.1, "
                "or put a TLS proxy in front and say so with --behind-tls-proxy (RUBATO_BEHIND_TLS_PROXY=true). "
                "A container whose port is published on loopback only takes RUBATO_PUBLISHED_ON_LOOPBACK=true"
            )
        return self

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is the embedded one."""
        return self.database_url.startswith("sqlite")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def storage_uri(self) -> StorageUri:
        """The checkpoint root."""
        return parse_storage(self.storage)

    @property
    def cookie_name(self) -> str:
        """Browsers share cookies among the ports of a host, so the name tells two homes apart."""
        return "rubato_session" if self.port in (0, DEFAULT_PORT) else f"rubato_session_{self.port}"
