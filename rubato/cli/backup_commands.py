"""`rubato backup` and `rubato restore`: the service of this machine's home as one file, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rubato.cli.options import JsonOption
from rubato.cli.output import note, put, put_json
from rubato.errors import KeeperError
from rubato.home import Home
from rubato.wire.units import plural


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Write a backup of this RUBATO_HOME's service to a file.

    Also while it runs: database, keys, logs and packages. Checkpoints are not in it. It holds keys in clear: keep it as
    safe as the home.
    """
    result = _run("save", file)
    for missing in result["missing"]:
        note(f"not there to be copied: {missing}")
    if result["keys_elsewhere"]:
        note(f"not in it are the keys that seal secrets, {result['keys_elsewhere']}: keep a copy of that file as well")
    if as_json:
        put_json(result)
        return
    note(f"Saved {result['jobs']} jobs as of {result['created_at']}; checkpoints stay where they are.")
    put(result["file"])


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `rubato backup` wrote.")],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where something is there already; it is put aside beside its place.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a checked backup into this RUBATO_HOME. Its service must be stopped."""
    result = _run("restore", file, *(["--replace"] if replace else []))
    if as_json:
        put_json(result)
        return
    note(f"Restored {result['jobs']} jobs as of {result['created_at']}; what came later is gone.")
    note(f"Attempts grow by {result['attempts_raised_by']}: controllers from before no longer count.")
    for line in describe_missing(result["missing_checkpoints"], result["newer_checkpoints"]):
        note(line)
    if result["put_aside"]:
        note("What was there before is kept until you remove it:")
    for folder in result["put_aside"]:
        put(folder)


def describe_missing(missing: list[str], newer: list[str]) -> list[str]:
    """A line for each job with checkpoints that are not there, and whether it has newer ones: then nothing is lost.

    Args:
        missing: as `JOB/CHECKPOINT`.
        newer: on the storage, oldest first for each job.
    """
    lines = []
    for job, names in _by_job(missing).items():
        text = (
            f"{job}: {plural(len(names), 'checkpoint')} of the backup not on the storage any more ({', '.join(names)})"
        )
        there = _by_job(newer).get(job)
        newest = f"; newer ones are there, up to {there[-1]}, from which it goes on" if there else ""
        after = newest or ", and there is no newer one"
        lines.append(f"{text}{after}")
    return lines


def _by_job(names: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        job, _, checkpoint = name.partition("/")
        found.setdefault(job, []).append(checkpoint)
    return found


def _run(action: str, file: Path, *flags: str) -> dict[str, Any]:
    """The work is the service's, which this command does not load: it runs in a process of its own."""
    from rubato.cli.keeper.commands import DATABASE_URL, STORAGE, find_checkout

    home = Home.from_environment()
    environment = {**os.environ, "RUBATO_HOME": str(home.path), "PYTHONPATH": str(find_checkout())}
    for name, keep in ((DATABASE_URL, home.keep_database_url), (STORAGE, home.keep_storage)):
        if not environment.get(name):
            environment.pop(name, None)
            if kept := keep(None):
                environment[name] = kept
    command = [sys.executable, "-P", "-m", "service.backup", action, str(file.absolute()), *flags]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise KeeperError(f"the {'backup' if action == 'save' else 'restore'} was not done")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
