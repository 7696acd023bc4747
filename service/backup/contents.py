"""What belongs into a backup besides the database: as the database's snapshot says, so that all of it fits together."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.logs import LogPosition

Fetch = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query in the snapshot."""

KEYS, LOGS, PACKAGES = "keys", "logs", "packages"
SQLITE_MEMBER, POSTGRES_MEMBER, CHECKPOINTS_MEMBER = "database.sqlite", "database.dump", "checkpoints.json"

NOT_KEYS = (
    "*.db",
    "*.db-wal",
    "*.db-shm",
    "*.lock",
    "run.json",
    "login.json",
    "database-url",
    "storage",
    "port",
    "*.log",
    "*.log.1",
    "*.backup",
    ".*",
)
"""At the top of a home, besides keys and tokens: databases, locks, addresses, output, backups."""
MAX_KEY_BYTES = 1 << 20


@dataclass(frozen=True)
class Contents:
    """What a snapshot of the database says of everything beside it."""

    revision: str
    num_jobs: int
    logs: tuple[tuple[str, LogPosition], ...]
    """Of each job with lines: up to where they are acknowledged."""
    packages: tuple[str, ...]
    checkpoints: tuple[dict[str, Any], ...]
    """Those that were not deleted, of jobs that are not final: not copied, but compared with the storage later."""


def read_contents(fetch: Fetch) -> Contents:
    """Ask a snapshot. Only columns of the first migration: the database may be an older release's."""
    jobs = fetch("SELECT id, log_segment, log_offset FROM jobs ORDER BY id")
    checkpoints = fetch(
        "SELECT c.job_id, c.checkpoint_id, c.step, c.bytes FROM checkpoints c JOIN jobs j ON j.id = c.job_id "
        "WHERE c.deleted_at IS NULL AND j.status NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY c.id"
    )
    keys = ("job_id", "checkpoint_id", "step", "bytes")
    return Contents(
        revision=str(fetch("SELECT version_num FROM alembic_version")[0][0]),
        num_jobs=len(jobs),
        logs=tuple((str(job), LogPosition(segment, offset)) for job, segment, offset in jobs if segment or offset),
        packages=tuple(str(row[0]) for row in fetch("SELECT sha256 FROM packages ORDER BY sha256")),
        checkpoints=tuple(dict(zip(keys, row, strict=True)) for row in checkpoints),
    )


def key_files(home: Path) -> list[Path]:
    """Tokens and keys: every small file at the top of the home that is nothing else."""
    return sorted(
        path
        for path in home.iterdir()
        if path.is_file()
        and not path.is_symlink()
        and path.stat().st_size <= MAX_KEY_BYTES
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in NOT_KEYS)
    )


def log_files(folder: Path, job_id: str, end: LogPosition) -> Iterator[tuple[Path, int]]:
    """The segments of a job that are there, each with the bytes that count: lines behind were never acknowledged."""
    for segment in range(end.segment + 1):
        path = folder / job_id / f"{segment:08d}.jsonl"
        if path.is_file():
            size = path.stat().st_size
            yield path, min(size, end.offset) if segment == end.segment else size
