"""Checks a backup, prepares it beside what is there, and puts it in place."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rubato.wire.storage import MANIFEST_NAME
from service.backup import postgres, sqlite
from service.backup.archive import ArchiveReader, BackupError, Manifest, Progress, sync_folder
from service.backup.attempts import decide_raise
from service.backup.contents import CHECKPOINTS_MEMBER, KEYS, LOGS, PACKAGES, POSTGRES_MEMBER, SQLITE_MEMBER
from service.backup.swap import PENDING, STAGING, SWAP, Move, begin_swap, finish_swap, restore_lock
from service.backup.take import sqlite_path
from service.clock import parse_rfc3339
from service.database import HomeInUse, hold_file_lock
from service.migrations.upgrade import knows_revision
from service.settings import Settings

KEEPER_LOCK = "keeper.lock"


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    created_at: str
    jobs: int
    attempts_raised_by: int
    put_aside: list[str]
    """The folders of what was there before: one in the home, and one beside a database that lies elsewhere."""
    missing_checkpoints: list[str]
    """Of jobs that go on: known to the backup, and not on the storage any more."""
    newer_checkpoints: list[str]
    """Of the same jobs: on the storage, and newer than all that are missing; these were kept instead."""

    def as_json(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def restore_backup(settings: Settings, source: Path, *, replace: bool, tell: Progress) -> Restored:
    """Put a backup into a home and its database.

    Until the last check has passed nothing has changed; from then on a kill does not stop it: the next start of the
    service, or of this, goes on. PostgreSQL: a kill while the database is written asks for this once more.

    Raises:
        BackupError: damaged, of a newer release or of the other database; a service lives; something is there already.
    """
    home = settings.home
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ArchiveReader(source) as archive, ExitStack() as held:
        manifest = archive.manifest
        _check_fit(settings, manifest)
        held.enter_context(restore_lock(home))
        held.enter_context(_nobody_works(settings))
        staging = home / STAGING
        was_cut_off = (staging / PENDING).exists()
        if (staging / SWAP).exists():
            finish_swap(home)
        if not replace and not was_cut_off:
            _refuse_filled(settings)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        if was_cut_off:
            (staging / PENDING).touch()
        sync_folder(home)
        archive.unpack(staging, tell)
        checkpoints = json.loads(archive.read(CHECKPOINTS_MEMBER) or b"[]")
        now = datetime.now(UTC)
        raised = decide_raise(parse_rfc3339(manifest.created_at), now)
        aside = f"replaced-{now:%Y%m%dT%H%M%S%f}"
        moves = _file_moves(home, staging, aside)
        if settings.is_sqlite:
            sqlite.make_ready(staging / SQLITE_MEMBER, raise_attempts_by=raised, tell=tell)
            moves += _database_moves(settings, staging / SQLITE_MEMBER, aside)
        else:
            (staging / PENDING).touch()
            sync_folder(staging)
            dump = staging / POSTGRES_MEMBER
            postgres.restore_database(settings.database_url, dump, raise_attempts_by=raised, folder=staging, tell=tell)
        begin_swap(home, moves)
        put_aside = finish_swap(home)
    missing = _missing_checkpoints(settings, checkpoints)
    return Restored(
        created_at=manifest.created_at,
        jobs=manifest.num_jobs,
        attempts_raised_by=raised,
        put_aside=[str(folder) for folder in put_aside],
        missing_checkpoints=missing,
        newer_checkpoints=find_newer(settings, missing),
    )


def _check_fit(settings: Settings, manifest: Manifest) -> None:
    kind = "sqlite" if settings.is_sqlite else "postgresql"
    if manifest.database != kind:
        raise BackupError(
            f"the backup is of {manifest.database}, and RUBATO_DATABASE_URL names {kind}. "
            "A backup goes back into the same kind of database."
        )
    if not knows_revision(manifest.revision):
        raise BackupError(
            f"the backup was made by a newer release (migration {manifest.revision}); restore it with that release."
        )


@contextmanager
def _nobody_works(settings: Settings) -> Iterator[None]:
    """Hold what a keeper and a service on SQLite hold while they live.

    Raises:
        BackupError: one lives.
    """
    with ExitStack() as held:
        descriptor = os.open(settings.home / KEEPER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"{settings.home} is up; `rubato down` first.") from None
        if settings.is_sqlite:
            try:
                held.callback(os.close, hold_file_lock(settings.database_url))
            except HomeInUse as error:
                raise BackupError(str(error)) from None
        else:
            postgres.refuse_living(settings.database_url)
        yield


def _refuse_filled(settings: Settings) -> None:
    found = [str(settings.home / name) for name in ("hmac-key", LOGS, PACKAGES) if _is_filled(settings.home / name)]
    if settings.is_sqlite and sqlite_path(settings).exists():
        found.append(str(sqlite_path(settings)))
    if not settings.is_sqlite and not postgres.check_empty(settings.database_url):
        found.append("the database")
    if found:
        raise BackupError(
            f"there is something already: {', '.join(found)}. `--replace` puts the backup in its place; "
            "what was in files is put aside, what was in a PostgreSQL is gone."
        )


def _is_filled(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _file_moves(home: Path, staging: Path, aside: str) -> list[Move]:
    """Keys one by one: one that the backup does not have stays."""
    for folder in (LOGS, PACKAGES, KEYS):
        (staging / folder).mkdir(exist_ok=True, mode=0o700)
    new = [*sorted((staging / KEYS).iterdir()), staging / LOGS, staging / PACKAGES]
    return [Move(path, home / path.name, home / aside / path.name) for path in new]


def _database_moves(settings: Settings, copy: Path, aside: str) -> list[Move]:
    """The old journals go first: a new database beside an old journal would be taken for that one's."""
    place = sqlite_path(settings)
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_dev != copy.stat().st_dev:
        # A rename does not cross file systems: beside its place, it is one again.
        beside = place.with_name(f".{place.name}.restored")
        shutil.copyfile(copy, beside)
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        copy = beside
    journals = [place.name + suffix for suffix in ("-wal", "-shm")]
    return [
        *(Move(None, folder / name, folder / aside / name) for name in journals),
        Move(copy, place, folder / aside / place.name),
    ]


def _missing_checkpoints(settings: Settings, checkpoints: list[dict[str, Any]]) -> list[str]:
    """Looked for in a file system only; of an object store the controllers will say."""
    root = Path(settings.storage_uri.path)
    if not settings.storage_uri.is_local or not root.is_dir():
        return []
    names = [f"{one['job_id']}/{one['checkpoint_id']}" for one in checkpoints]
    return [name for name in names if not (root / name / MANIFEST_NAME).is_file()]


def find_newer(settings: Settings, missing: list[str]) -> list[str]:
    """Those on the storage that are newer than all missing ones of their job: `JOB/CHECKPOINT`, oldest first."""
    root = Path(settings.storage_uri.path)
    newest: dict[str, tuple[int, int]] = {}
    for name in missing:
        job, _, checkpoint = name.partition("/")
        if age := _age_of(checkpoint):
            newest[job] = max(age, newest.get(job, age))
    found = []
    for job, bound in newest.items():
        folders = (root / job).iterdir() if (root / job).is_dir() else ()
        ages = {folder: age for folder in folders if (age := _age_of(folder.name)) and age > bound}
        kept = sorted((folder for folder in ages if (folder / MANIFEST_NAME).is_file()), key=lambda one: ages[one])
        found += [f"{job}/{folder.name}" for folder in kept]
    return found


def _age_of(checkpoint: str) -> tuple[int, int] | None:
    """Attempt and step of a checkpoint's folder, the order in which they count."""
    match = re.fullmatch(r"(\d+)-(\d+)", checkpoint)
    return (int(match[1]), int(match[2])) if match else None
