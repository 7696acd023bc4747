"""Checkpoints where the settings say that they lie: opened for downloads, pinned, and deleted when a person says so.

Whether a checkpoint is pinned is a file beside it and nothing else: controllers prune, and `rubato pin` works, without
the service, so a column here could only be wrong. Of a storage that does not answer, nothing is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from rubato.wire.storage import MANIFEST_NAME, PIN_NAME, PIN_TEXT, StorageUri
from service.errors import ErrorKind, ServiceError
from service.stored import ObjectFile, StoredFolder, find_stored, open_stored

T = TypeVar("T")

LOOK_S = 3.0
"""What is only shown waits so long for the storage."""
FIND_S = 20.0
"""A download may begin late: an object store under load takes seconds for the size of a file."""
CHANGE_S = 60.0
"""What a person asked for may take longer: a checkpoint of many files in an object store is deleted in batches."""
SILENCE_S = 10.0
"""After a look that failed, for so long nothing is looked at for show: a page must not wait on every request."""
MARK_NAME = ".rubato-storage"
"""A file at the root, by which a storage that was emptied differs from a mount point without its mount."""
MARK_TEXT = b"Checkpoints of Rubato lie here. Without this file an empty folder is taken for one that is not mounted.\n"
MAX_ASKING = 8
"""Requests to the storage at the same time; those that hang count."""


def check_there(root: StorageUri) -> None:
    """Refuse to believe that a checkpoint is gone where everything is: a mount point without its mount is empty, too.

    Raises:
        OSError: nothing lies there.
    """
    stored = open_stored(root)
    if not stored.exists(MARK_NAME) and not stored.folders():
        what = f"nothing lies there: is it mounted? Where it was emptied on purpose, make a file {MARK_NAME} in it"
        raise FileNotFoundError(errno.ENOENT, what, str(root))


@contextlib.contextmanager
def marked(root: StorageUri) -> Iterator[None]:
    """Leave the mark before something is deleted, which may be the last that lies there.

    Raises:
        OSError: nothing lies there, or it cannot be told from what is not there once it is empty.
    """
    check_there(root)
    is_marked = open_stored(root).exists(MARK_NAME) or _leave_mark(root)
    yield
    if not is_marked:
        _leave_mark(root)  # on a disk that was full


def _leave_mark(root: StorageUri) -> bool:
    """Whether it is there; False: the disk is full, and what is deleted makes room for it."""
    try:
        open_stored(root).write(MARK_NAME, MARK_TEXT)
    except PermissionError:
        # A folder in which nothing may be made does not let go of the folders of jobs either: it is never empty. The
        # folders of an object store go with what lies in them.
        if not root.is_local:
            raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def pin(folder: StoredFolder) -> bool:
    """Keep a checkpoint whatever the retention says; False: it is not there (any more).

    The manifest is looked for after the pin was written, and whoever deletes looks for the pin after the manifest was
    removed: one of the two sees the other.
    """
    if not folder.exists(MANIFEST_NAME):
        return False
    try:
        folder.write(PIN_NAME, PIN_TEXT)
    except FileNotFoundError:
        return False  # the whole folder is gone meanwhile
    if folder.exists(MANIFEST_NAME):
        return True
    folder.remove(PIN_NAME)
    return False


def delete(folder: StoredFolder) -> bool:
    """Delete a checkpoint for good, its manifest first; False: it is pinned. None there is fine."""
    if folder.exists(PIN_NAME):
        return False
    if folder.exists(MANIFEST_NAME):
        manifest = folder.read(MANIFEST_NAME)
        folder.remove(MANIFEST_NAME)
        if folder.exists(PIN_NAME):
            folder.write(MANIFEST_NAME, manifest)
            return False
    folder.remove_all()
    return True


class StorageDesk:
    """Asks the storage in threads of its own, and waits so long and no longer: a file system that hangs stops no loop.

    The threads are daemons, so that one that hangs for ever does not keep the process from ending.
    """

    def __init__(self, root: StorageUri, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._asking = 0
        self._silent_until = 0.0

    async def pinned(self, job_id: str, names: Sequence[str]) -> dict[str, bool | None]:
        """Whether checkpoints of a job are pinned, by the names of their folders; None: the storage does not answer."""

        def look() -> dict[str, bool | None]:
            found = open_stored(self._root, job_id).which_hold(PIN_NAME, names)
            if not any(found.values()):
                check_there(self._root)
            return dict(found)

        if names and self._clock() >= self._silent_until:
            try:
                return await self._ask(look, LOOK_S)
            except ServiceError:
                self._silent_until = self._clock() + SILENCE_S
        return dict.fromkeys(names)

    async def answers(self) -> bool:
        """Whether something lies at the root; what is wrong in one folder says nothing of the others."""
        try:
            await self._ask(lambda: check_there(self._root), FIND_S)
        except ServiceError:
            return False
        return True

    async def holds(self, job_id: str) -> bool:
        """Whether a checkpoint of a job lies there, or a part of one.

        Raises:
            ServiceError: storage_unreachable; for a while after that nobody asks again.
        """
        if self._clock() < self._silent_until:
            raise _unreachable("it did not answer a moment ago")
        try:
            return await self._ask(lambda: bool(open_stored(self._root, job_id).folders()), LOOK_S)
        except (ServiceError, asyncio.CancelledError):
            self._silent_until = self._clock() + SILENCE_S
            raise

    async def find(self, job_id: str, name: str, file: str) -> BinaryIO | ObjectFile | None:
        """A file of a checkpoint to send; None: there is none, or it is no plain file.

        Raises:
            ServiceError: storage_unreachable.
        """

        def look() -> BinaryIO | ObjectFile | None:
            found = find_stored(self._root, job_id, name, file)
            if found is None:
                check_there(self._root)
            return found

        return await self._ask(look, FIND_S)

    async def change(self, job_id: str, name: str, change: Callable[[StoredFolder], T]) -> T:
        """Do something with a checkpoint's folder.

        Raises:
            ServiceError: storage_unreachable.
        """

        def work() -> T:
            with marked(self._root):
                return change(open_stored(self._root, job_id, name))

        return await self._ask(work, CHANGE_S)

    async def pinned_of(self, job_id: str, *, is_told_of: bool) -> list[str]:
        """The names of all pinned checkpoints of a job, also of those that it never told of.

        Args:
            job_id: whose.
            is_told_of: whether it told of checkpoints that nobody deleted: then a storage without any is not believed.

        Raises:
            ServiceError: storage_unreachable.
        """

        def look() -> list[str]:
            stored = open_stored(self._root, job_id)
            names = self._names(stored, is_told_of=is_told_of)
            return [name for name, is_pinned in stored.which_hold(PIN_NAME, names).items() if is_pinned]

        return await self._ask(look, CHANGE_S)

    async def remove_checkpoints(self, job_id: str, *, is_told_of: bool) -> AsyncIterator[str]:
        """Remove all folders of a job but for pinned ones, one request each; gives the name of each that is gone.

        Args: see `pinned_of`.

        Raises:
            ServiceError: storage_unreachable; also where something else is left in the end.
        """

        def finish() -> None:
            stored = open_stored(self._root, job_id)
            left = [name for name, is_pinned in stored.which_hold(PIN_NAME, stored.folders()).items() if not is_pinned]
            if left:
                raise OSError(f"{left[0]} of {job_id} was removed and is still there")
            stored.remove_if_empty()

        stored = open_stored(self._root, job_id)
        for name in await self._ask(lambda: self._names(stored, is_told_of=is_told_of), CHANGE_S):
            if await self.change(job_id, name, delete):
                yield name
        await self._ask(finish, CHANGE_S)

    def _names(self, stored: StoredFolder, *, is_told_of: bool) -> list[str]:
        names = stored.folders()
        if is_told_of and not names:
            check_there(self._root)
        return names

    async def _ask(self, work: Callable[[], T], timeout_s: float) -> T:
        if self._asking >= MAX_ASKING:
            raise _unreachable("too many requests wait for it already")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: Exception | None) -> None:
            self._asking -= 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, result, failure)

        self._asking += 1
        threading.Thread(target=run, name="storage", daemon=True).start()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise _unreachable(f"no answer within {timeout_s:g} s") from None
        except (ServiceError, asyncio.CancelledError):
            raise
        except Exception as error:
            # Clients of object stores have trees of exceptions of their own.
            raise _unreachable(f"{type(error).__name__}: {error}") from error


def _unreachable(cause: str) -> ServiceError:
    return ServiceError(
        ErrorKind.STORAGE_UNREACHABLE,
        f"The service cannot reach the storage of checkpoints ({cause[:300]}). It must see the same RUBATO_STORAGE as "
        "the workers.",
    )
