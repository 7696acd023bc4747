"""`python -m service.backup save FILE` and `... restore FILE`: what `rubato backup` and `rubato restore` call.

Settings come from the environment, as the service's do. Progress goes to stderr, the result as JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rubato.errors import UserError
from service.backup.archive import BackupError
from service.backup.restore import restore_backup
from service.backup.take import summary, take_backup
from service.settings import Settings

TELL_EVERY_S = 1.0


class ProgressLines:
    """One line a second at most, one for each new thing, and one at its end."""

    def __init__(self) -> None:
        self._what, self._is_whole = "", False
        self._told_at = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell, or not."""
        now = time.monotonic()
        is_whole = 1 < total <= done
        if what == self._what and (self._is_whole or (not is_whole and now - self._told_at < TELL_EVERY_S)):
            return
        self._what, self._told_at, self._is_whole = what, now, is_whole
        share = f": {min(done, total) * 100 // total:d} % of {_shown(total)}" if total > 1 else ""
        print(f"{what}{share}", file=sys.stderr, flush=True)


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it; 1 with a sentence where it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m service.backup", description="Backups of a Rubato service.")
    actions = parser.add_subparsers(dest="action", required=True)
    save = actions.add_parser("save", help="write a backup of a service, also of one that runs")
    restore = actions.add_parser("restore", help="put a backup into a home whose service is stopped")
    for action in (save, restore):
        action.add_argument("file", type=Path)
    restore.add_argument("--replace", action="store_true", help="also where something is there already")
    options = parser.parse_args(arguments)
    # Keys in clear: nobody else's business, wherever it is written.
    os.umask(0o077)
    try:
        result = _act(options)
    except ValidationError as error:
        print(f"error: {'; '.join(str(item['msg']) for item in error.errors())}", file=sys.stderr)
        return 1
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result), flush=True)
    return 0


def _act(options: argparse.Namespace) -> dict[str, Any]:
    settings, file = Settings(), options.file.absolute()
    if not file.parent.is_dir():
        raise BackupError(f"there is no folder {file.parent}.")
    if options.action == "save":
        manifest, missing = take_backup(settings, file, ProgressLines())
        return summary(settings, manifest, missing, file)
    return restore_backup(settings, file, replace=options.replace, tell=ProgressLines()).as_json()


if __name__ == "__main__":
    sys.exit(main())
