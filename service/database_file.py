"""The file of a SQLite database: whether it is there, the same as at the start, and whole.

A removed file goes on to take writes until the process ends, and then they are gone; a damaged one answers some queries
and fails others. Neither is worked on: the service stops, loudly, and does not begin anew in an empty file either.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

MARK = "made"
"""In the lock file's second line: there was a database here."""
_DAMAGE = ("malformed", "not a database")


class DatabaseLost(Exception):
    """The file of the database is gone, is another one, or is damaged: nothing is acknowledged any more."""


class DatabaseFile:
    """What is known of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.because = ""
        """Why it is lost; empty: it is not."""
        self.is_lost = asyncio.Event()
        self._identity: tuple[int, int] | None = None

    def check_before_start(self, lock_text: str) -> None:
        """Refuse to begin anew where there was a database.

        Raises:
            DatabaseLost: the lock file says so, and the file is not there, or holds nothing.
        """
        if MARK not in lock_text.splitlines()[1:]:
            return
        is_there = self.path.exists()
        if not is_there or self.path.stat().st_size == 0:
            raise self._lose(
                f"{self.path} is {'empty' if is_there else 'gone'}, and a service has worked on it before. Put it back "
                f"from a backup; to begin anew with nothing, remove {self.path}.lock"
            )

    def begin(self) -> None:
        """This is the file that is worked on."""
        self._identity = self._look()

    def check(self) -> None:
        """Look whether it is still there.

        Raises:
            DatabaseLost: it is not.
        """
        if self.because:
            raise DatabaseLost(self.because)
        if self._identity is not None and (seen := self._look()) != self._identity:
            how = "was removed" if seen is None else "was replaced by another file"
            raise self._lose(
                f"{self.path} {how} while the service worked on it. It has stopped: put the file back, with its -wal "
                "beside it, and start it again"
            )

    def judge(self, error: BaseException | None) -> None:
        """Look whether an error of the driver says that the file is damaged.

        Raises:
            DatabaseLost: it does.
        """
        if isinstance(error, sqlite3.DatabaseError) and any(words in str(error) for words in _DAMAGE):
            raise self._lose(
                f"{self.path} is damaged ({error}). The service has stopped: put it back from a backup, or save what "
                "`sqlite3 FILE .recover` can read"
            ) from error

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _lose(self, because: str) -> DatabaseLost:
        self.because = because
        self.is_lost.set()
        return DatabaseLost(because)
