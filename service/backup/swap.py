"""Puts what a restore prepared in the place of what is there; goes on where it was killed.

Everything lies ready in `.restore` in the home. Once `swap.json` is written there is no way back: whoever comes next,
the restore again or a starting service, does what is left of it. Before that, nothing of the home has changed.
`database.pending` lies there while a PostgreSQL is written: whether that has happened is then not known here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.backup.archive import BackupError, sync_folder

STAGING = ".restore"
SWAP, PENDING, LOCK = "swap.json", "database.pending", ".restore.lock"


@dataclass(frozen=True)
class Move:
    """One piece: what is there goes aside, then the new one takes its name. All three on one file system."""

    new: Path | None
    """None: what is there only goes aside."""
    place: Path
    aside: Path
    """In a folder of its own beside the place, which comes to be with the first piece that goes there."""

    def do(self) -> None:
        """Do what is not done yet: a kill may have come between any two strokes."""
        if self.new is not None and not self.new.exists():
            return
        if self.place.exists():
            self.aside.parent.mkdir(mode=0o700, exist_ok=True)
            self.place.rename(self.aside)
        if self.new is not None:
            self.new.rename(self.place)
        sync_folder(self.place.parent)


@contextmanager
def restore_lock(home: Path) -> Iterator[None]:
    """One restore at a time, and no service that starts meanwhile.

    Raises:
        BackupError: another one is at work.
    """
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"a restore into {home} is under way; wait for its end.") from None
        yield
    finally:
        os.close(descriptor)


def settle_restore(home: Path) -> None:
    """Before a service starts: finish a restore that was killed behind its last check, remove one killed before.

    Raises:
        BackupError: a restore is under way, or was killed while it wrote the database: it must be run again.
    """
    staging = home / STAGING
    if not staging.exists():
        return
    with restore_lock(home):
        if (staging / SWAP).exists():
            finish_swap(home)
        elif (staging / PENDING).exists():
            raise BackupError(
                f"a restore into {home} was cut off while it wrote the database. Run `rubato restore --replace FILE` "
                "again; until then this service does not start."
            )
        else:
            shutil.rmtree(staging, ignore_errors=True)


def begin_swap(home: Path, moves: list[Move]) -> None:
    """The point of no return."""
    data = [
        {"new": str(move.new) if move.new else None, "place": str(move.place), "aside": str(move.aside)}
        for move in moves
    ]
    part = home / STAGING / f".{SWAP}"
    with part.open("w") as stream:
        json.dump(data, stream)
        stream.flush()
        os.fsync(stream.fileno())
    part.rename(home / STAGING / SWAP)
    sync_folder(home / STAGING)


def finish_swap(home: Path) -> list[Path]:
    """Do all moves that are not done yet; gives the folders of what was put aside."""
    staging = home / STAGING
    data = json.loads((staging / SWAP).read_text())
    moves = [Move(Path(one["new"]) if one["new"] else None, Path(one["place"]), Path(one["aside"])) for one in data]
    for move in moves:
        move.do()
    # First of all, and for certain: a service that starts would do all of it again, with what came to be since.
    (staging / PENDING).unlink(missing_ok=True)
    (staging / SWAP).unlink()
    sync_folder(staging)
    shutil.rmtree(staging, ignore_errors=True)
    sync_folder(home)
    return sorted({move.aside.parent for move in moves if move.aside.exists()})
