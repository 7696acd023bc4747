"""One run at a time writes to a folder of checkpoints: of two, each would delete the other's, and go on from them.

A folder of a file system is locked for as long as its run lives, and the next run is refused. An object store knows no
locks, and what a killed run has left there looks like a run that lives: the newer one takes the folder over, and the
older one, which looks before it writes or deletes anything, stops. Jobs on a cluster have folders of their own, and
leases.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from rubato.checkpoint.due import within
from rubato.checkpoint.storage import Folder, LocalFolder
from rubato.errors import CheckpointError, StorageUnreachable, UserError
from rubato.launch.archive import next_attempt
from rubato.wire.units import utc_timestamp

OWNER_NAME = "rubato-owner.json"
"""Who writes to the folder. Removed at an orderly end."""
RELEASE_S = 5.0
"""So long the end of a run waits for a storage that hangs."""
WAIT_S = 2.0
"""So long the start of a run waits for the end of another one that may be about to end."""
_POLL_S = 0.1
_LOOKS = 5
"""So often a file is looked for that others may remove meanwhile."""


class Claim:
    """A folder of checkpoints that is one run's until `close`."""

    def __init__(self, root: Folder, run: str) -> None:
        """Take it.

        Args:
            root: where checkpoints lie; of a file system it is made.
            run: the run's id, or how it was started.

        Raises:
            UserError: another run holds it; the message says which, and what to do.
            CheckpointError, OSError: it cannot be written to.
        """
        self._root = root
        self._mine: dict[str, Any] = {
            "run": run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": utc_timestamp(),
            "token": secrets.token_hex(8),
        }
        self.attempt = 1
        """Later than any other one there."""
        self.former = ""
        """Who may still write there: it had no lock to hold, and has not said that it is over."""
        self._descriptor = _lock(root) if isinstance(root, LocalFolder) else None
        _CLAIMS.add(self)
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        former = self._owner() if self._descriptor is None else None
        self.attempt = next_attempt(self._root)
        if former is not None:
            self.former = describe_owner(former)
            self.attempt = max(self.attempt, int(former.get("attempt", 0)) + 1)
        self._mine["attempt"] = self.attempt
        data = json.dumps(self._mine).encode()
        if self._descriptor is None:
            self._root.write(OWNER_NAME, [data])
            return
        with contextlib.suppress(OSError):  # a full disk: the lock holds without words
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, data, 0)

    def taken_by(self) -> str:
        """Who has taken the folder over; empty: nobody.

        Raises:
            OSError, StorageUnreachable: the storage does not answer.
        """
        owner = self._owner()
        if owner is not None:
            return "" if owner.get("token") == self._mine["token"] else describe_owner(owner)
        later = next_attempt(self._root) - 1
        return f"a run that saved as attempt {later}, after this one's {self.attempt}," if later > self.attempt else ""

    def forget(self) -> None:
        """In a process that was forked: the folder is its parent's, and is locked no longer than that lives."""
        descriptor, self._descriptor = self._descriptor, None
        self._mine["token"] = ""
        if descriptor is not None:
            os.close(descriptor)  # not unlocked: that would be for both

    def close(self) -> None:
        """It may be another run's from now on."""
        with contextlib.suppress(StorageUnreachable, OSError):
            within(RELEASE_S, self._release, f"releasing {self._root}")

    def _release(self) -> None:
        try:
            if (owner := self._owner()) is not None and owner.get("token") == self._mine["token"]:
                self._root.remove(OWNER_NAME)  # before it is unlocked: who takes it next looks whether it is there
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _owner(self) -> dict[str, Any] | None:
        """What the folder says; None: nothing, or not the whole of it."""
        try:
            told = json.loads(b"".join(self._root.read(OWNER_NAME)))
        except (FileNotFoundError, ValueError):
            return None
        return told if isinstance(told, dict) else None


_CLAIMS: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget_all() -> None:
    for claim in list(_CLAIMS):
        claim.forget()


os.register_at_fork(after_in_child=_forget_all)


def held_by(root: Path) -> str:
    """Which run saves to a folder of a file system now; empty: none does."""
    try:
        with (root / OWNER_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _name_of(root / OWNER_NAME)
    except OSError:
        pass  # nobody ever did, or it cannot be known
    return ""


def describe_owner(owner: dict[str, Any]) -> str:
    """A run, and where it lives."""
    return f"{owner.get('run')} (process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')})"


def describe_former(owner: str) -> str:
    """What is told where a folder was taken over."""
    return (
        f"these checkpoints were last saved by {owner}, which did not say that it was over: should it still train, it "
        "stops when it is to save there again"
    )


def describe_taken(root: Folder, taker: str) -> str:
    """Why a run stops whose folder has become another one's."""
    return (
        f"{taker} saves to {root} now, so this run has stopped: each would delete the other's checkpoints. To go on "
        "with this one, stop the other and start this one again; to have both, give each its own --checkpoint-dir"
    )


def _lock(root: LocalFolder) -> int | None:
    """The descriptor that holds the folder's lock; None: the file system has no locks.

    Raises:
        UserError: it is held.  CheckpointError: its file cannot be made, or not be replaced.
    """
    path = root.path / OWNER_NAME
    deadline: float | None = None
    while True:
        with contextlib.ExitStack() as held:
            descriptor, is_own = _open(path)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if deadline is None:
                    deadline = time.monotonic() + WAIT_S
                    print(f"{_name_of(path)} saves to {root}: waiting whether it ends", file=sys.stderr, flush=True)
                if time.monotonic() >= deadline:
                    raise UserError(_describe_held(path)) from error
                held.close()
                time.sleep(_POLL_S)
                continue
            except OSError as error:
                if not is_own:
                    raise _refusal(path, error) from error
                return None
            # Who held it before may have removed it: then the name is free, or another file's.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    if is_own:
                        held.pop_all()
                        return descriptor
                    _remove(path)  # under its lock: of two that do so at once, one finds another file there


def _open(path: Path) -> tuple[int, bool]:
    """The owner's file, which is made; and whether it can be written to: that of another user's killed run cannot.

    Raises:  CheckpointError: not even read.
    """
    refused: OSError | None = None
    for _ in range(_LOOKS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
        except PermissionError as error:
            refused = error
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
        try:
            return os.open(path, os.O_RDONLY), False
        except FileNotFoundError:
            continue  # it was removed just now, or the folder cannot be written to
        except OSError:
            break
    assert refused is not None
    raise _refusal(path, refused) from refused


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except PermissionError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> CheckpointError:
    text = f"cannot write {path}: {error.strerror or error}"
    if path.exists():
        text += f". {_name_of(path)} was the last one to save there: if it is over, have its user delete that file"
    return CheckpointError(text)


def _describe_held(path: Path) -> str:
    name = _name_of(path)
    stops = f"stop it (`rubato cancel {name.split()[0]} --wait`)" if name.startswith("run_") else "stop it"
    return (
        f"{name} saves to {path.parent}, and two runs in one folder would "
        f"delete each other's checkpoints: wait for its end, {stops}, or give this one another --checkpoint-dir. "
        f"If that host is gone, delete {path}"
    )


def _name_of(path: Path) -> str:
    """Of the run that holds a lock, as its file says."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        owner = json.loads(path.read_bytes())
        if owner.get("run"):
            return describe_owner(owner)
    return "another run"
