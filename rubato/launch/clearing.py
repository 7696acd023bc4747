"""Checkpoints that nobody needs any more are cleared away, beside all else: the newest is read again before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rubato.checkpoint.due import Lane, due_s
from rubato.checkpoint.manifest import key_of
from rubato.checkpoint.retention import Retention, delete, holds, prunable, sweep
from rubato.checkpoint.storage import Folder
from rubato.engine.coordinator.orders import CommitManifest, Emit
from rubato.errors import CheckpointError
from rubato.launch.host import Post
from rubato.wire.events import EventKind

FINISH_S = 5.0
"""So long the end of a job waits for what is being cleared away: enough to read a gigabyte again. What is not done by
then stays until something is saved there again."""


class Void(Exception):
    """What was asked for is not wanted any more."""


class Clearing:
    """Clears away what a new checkpoint makes superfluous, in a lane of its own: nobody waits for it.

    An old checkpoint goes only once the newest was read again and verified, and each is read once. Of what waits only
    the last is done. Once somebody looks for a checkpoint, or some turn out not to count, all that was asked for before
    is void: what was the newest may be none any more, and what seemed superfluous the way back.
    """

    def __init__(self, root: Folder | None, retention: Retention, post: Post, is_superseded: Callable[[], bool]):
        self._root = root
        self._retention = retention
        self._post = post
        self._is_superseded = is_superseded
        self._lane = Lane("archive-clearing")
        self._is_closed = threading.Event()
        self._last: CommitManifest | None = None
        """What was asked for last."""
        self._turn = threading.Lock()
        """Held while something is deleted, not while it is read."""
        self._num_voids = 0
        self._proven = ""
        """The newest checkpoint that was read again and verified."""

    def after(self, order: CommitManifest) -> None:
        """Clear away what this checkpoint, which is whole now, makes superfluous; events tell of each."""
        self._last = order
        num_voids = self._num_voids
        seconds = due_s(sum(int(file["bytes"]) for file in order.files))
        self._lane.put(lambda: self._clear(order, num_voids), lambda: self._tell_hangs(order, seconds), seconds)

    def void(self) -> None:
        """Nothing of what was asked for so far is deleted from now on; waits for a deletion, not for reading."""
        with self._turn:
            self._num_voids += 1
            self._proven = ""

    def know(self, name: str) -> None:
        """This checkpoint, the newest, was read by somebody else, and verified."""
        with self._turn:
            self._proven = name

    def finish(self) -> None:
        """Give what is under way a short time, then stop it. What was deleted was told of when this returns."""
        self._lane.wait(FINISH_S)
        self._is_closed.set()
        if self._turn.acquire(timeout=FINISH_S):
            self._turn.release()

    def close(self, timeout_s: float) -> None:
        """Stop what is under way, and end the thread."""
        self._is_closed.set()
        self._lane.close(timeout_s)

    def _clear(self, order: CommitManifest, num_voids: int) -> None:
        root = self._root
        if root is None or order is not self._last:
            return
        try:
            self._check(num_voids)
            self._sweep(root, order, num_voids)
            doomed, newest = prunable(root, self._retention)
            if newest is not None and doomed and self._is_proven(newest, num_voids):
                self._prune(doomed, newest, order, num_voids)
        except Void:
            pass
        except (OSError, CheckpointError) as error:
            message = f"old checkpoints could not be cleared away: {error}"
            self._emit(EventKind.CHECKPOINT_FAILED, message, order, cause=str(error))

    def _sweep(self, root: Folder, order: CommitManifest, num_voids: int) -> None:
        if self._is_superseded():
            raise Void
        with self._turn:
            self._check(num_voids)
            sweep(root, before=key_of(order.folder))

    def _is_proven(self, newest: Folder, num_voids: int) -> bool:
        return newest.name == self._proven or holds(newest, lambda: self._check(num_voids))

    def _prune(self, doomed: Sequence[Folder], newest: Folder, order: CommitManifest, num_voids: int) -> None:
        if self._is_superseded():
            raise Void
        with self._turn:
            self._check(num_voids)
            self._proven = newest.name
            for folder in doomed:
                self._check(num_voids)
                if delete(folder):
                    message = f"checkpoint {folder.name} was deleted: {self._retention} are kept"
                    self._emit(EventKind.CHECKPOINT_DELETED, message, order, checkpoint_id=folder.name)

    def _check(self, num_voids: int) -> None:
        if self._is_closed.is_set() or num_voids != self._num_voids:
            raise Void

    def _tell_hangs(self, order: CommitManifest, seconds: float) -> None:
        cause = f"reading the newest again, or deleting, has not come to an end for {seconds:.0f} s"
        message = f"old checkpoints are not cleared away: {cause}; does the storage hang?"
        self._emit(EventKind.CHECKPOINT_FAILED, message, order, cause=cause)

    def _emit(self, kind: EventKind, message: str, order: CommitManifest, **data: object) -> None:
        self._post(Emit(kind.value, message, order.step, order.generation, {"step": order.step, **data}))
