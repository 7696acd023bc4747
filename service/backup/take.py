"""Makes a backup of a service that may be running."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from service.backup import postgres, sqlite
from service.backup.archive import ArchiveWriter, BackupError, Manifest, Progress
from service.backup.contents import (
    CHECKPOINTS_MEMBER,
    KEYS,
    LOGS,
    PACKAGES,
    POSTGRES_MEMBER,
    SQLITE_MEMBER,
    Contents,
    key_files,
    log_files,
)
from service.clock import to_rfc3339
from service.settings import Settings


def take_backup(settings: Settings, target: Path, tell: Progress) -> tuple[Manifest, list[str]]:
    """Write a backup to a new file; gives its manifest, and what of it was not there to be copied.

    The database first: files only grow behind what it says, so they hold at least that.

    Raises:
        BackupError: there is no service's home, the file exists, or something failed; no file is left.
    """
    if not (settings.home / "hmac-key").is_file():
        raise BackupError(f"{settings.home} is no home of a service: it has no hmac-key. Set RUBATO_HOME.")
    with ArchiveWriter(target) as archive, ExitStack() as leaving:
        created_at = datetime.now(UTC)
        # Beside the backup, where there is room for it, under a name by which the next one removes what a kill left.
        copy = target.with_name(f".{target.name}.database")
        copy.unlink(missing_ok=True)
        leaving.callback(copy.unlink, missing_ok=True)
        if settings.is_sqlite:
            contents = sqlite.copy_database(sqlite_path(settings), copy, tell)
            archive.add_file(SQLITE_MEMBER, copy)
        else:
            contents = postgres.copy_database(settings.database_url, copy, tell)
            archive.add_file(POSTGRES_MEMBER, copy)
        for path in key_files(settings.home):
            archive.add_bytes(f"{KEYS}/{path.name}", path.read_bytes())
        archive.add_bytes(CHECKPOINTS_MEMBER, json.dumps(contents.checkpoints).encode())
        missing = _add_files(archive, settings, contents, tell)
        manifest = archive.commit(
            created_at=to_rfc3339(created_at),
            database="sqlite" if settings.is_sqlite else "postgresql",
            revision=contents.revision,
            storage=settings.storage,
            num_jobs=contents.num_jobs,
        )
    return manifest, missing


def sqlite_path(settings: Settings) -> Path:
    """The file of an embedded database."""
    return Path(make_url(settings.database_url).database or "")


def _add_files(archive: ArchiveWriter, settings: Settings, contents: Contents, tell: Progress) -> list[str]:
    """Log lines up to where they count, and packages, each under the hash by which it is named."""
    missing: list[str] = []
    logs = [(path, size) for job, end in contents.logs for path, size in log_files(settings.home / LOGS, job, end)]
    packages = [settings.home / PACKAGES / f"{sha256}.zip" for sha256 in contents.packages]
    total = sum(size for _path, size in logs) + sum(path.stat().st_size for path in packages if path.exists())
    done = 0
    for path, size in logs:
        try:
            done += archive.add_file(f"{LOGS}/{path.parent.name}/{path.name}", path, size).bytes
        except FileNotFoundError:
            missing.append(f"log segment {path.name} of {path.parent.name}")
        tell("copying logs and packages", done, total)
    for path, sha256 in zip(packages, contents.packages, strict=True):
        try:
            member = archive.add_file(f"{PACKAGES}/{path.name}", path)
        except FileNotFoundError:
            missing.append(f"package {sha256}")
            continue
        if member.sha256 != sha256:
            missing.append(f"package {sha256}: its bytes hash to {member.sha256}")
        done += member.bytes
        tell("copying logs and packages", done, total)
    tell("copying logs and packages", total, total)  # also where something was not there any more
    return missing


def keys_elsewhere(settings: Settings) -> Path | None:
    """The file of the keys that seal secrets, where it lies outside of the home: a backup does not hold it."""
    file = settings.secret_keys_file
    return None if file is None or file in key_files(settings.home) else file


def summary(settings: Settings, manifest: Manifest, missing: list[str], path: Path) -> dict[str, Any]:
    """The result as data."""
    keys = keys_elsewhere(settings)
    return {
        "file": str(path),
        "created_at": manifest.created_at,
        "database": manifest.database,
        "revision": manifest.revision,
        "jobs": manifest.num_jobs,
        "bytes": manifest.total_bytes,
        "missing": missing,
        "keys_elsewhere": str(keys) if keys else None,
    }
