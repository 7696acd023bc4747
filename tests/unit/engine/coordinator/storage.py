"""The storage of checkpoints: the real archive over a folder in memory, each thing done when the schedule has it so."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.manifest import MANIFEST_NAME, JobTerms, checkpoint_folders, key_of
from rubato.checkpoint.retention import Retention
from rubato.engine.tree import radices_of
from rubato.errors import CheckpointError
from rubato.launch.archive import ArchiveTerms, StorageArchive
from rubato.launch.host import Post
from rubato.wire.cluster import Distrust

KEEP_ALL = Retention(10**6)


class MemoryFolder:
    """A `Folder` in a dictionary."""

    def __init__(self, files: dict[str, bytes] | None = None, path: str = "") -> None:
        self._files = {} if files is None else files
        self._path = path
        self.is_full = False

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def __str__(self) -> str:
        return self._path

    def __truediv__(self, name: str) -> MemoryFolder:
        below = MemoryFolder(self._files, f"{self._path}/{name}")
        below.is_full = self.is_full
        return below

    def prepare(self) -> None:
        """It can always be written to."""

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        data = b"".join(chunks)
        if self.is_full and name == MANIFEST_NAME:
            raise CheckpointError("the disk is full")
        self._files[f"{self._path}/{name}"] = data
        return FileRecord(name, len(data), hashlib.sha256(data).hexdigest())

    def write_new(self, name: str, data: bytes) -> FileRecord | None:
        return None if self.exists(name) else self.write(name, [data])

    def read(self, name: str) -> Iterator[bytes]:
        yield self._content(name)

    def size(self, name: str) -> int:
        return len(self._content(name))

    def _content(self, name: str) -> bytes:
        try:
            return self._files[f"{self._path}/{name}"]
        except KeyError:
            raise FileNotFoundError(name) from None

    def exists(self, name: str) -> bool:
        return f"{self._path}/{name}" in self._files

    def files(self) -> list[str]:
        below = (path.removeprefix(f"{self._path}/") for path in self._files if path.startswith(f"{self._path}/"))
        return [path for path in below if "/" not in path]

    def folders(self) -> list[str]:
        below = (path.removeprefix(f"{self._path}/") for path in self._files if path.startswith(f"{self._path}/"))
        return list({path.split("/")[0]: None for path in below if "/" in path})

    def remove(self, name: str) -> None:
        self._files.pop(f"{self._path}/{name}", None)

    def remove_all(self) -> None:
        for path in [path for path in self._files if path.startswith(f"{self._path}/")]:
            del self._files[path]


class SteppedLane:
    """As `rubato.checkpoint.due.Lane`: one thing after the other, each as late as the schedule likes."""

    def __init__(self) -> None:
        self.tasks: deque[Callable[[], None]] = deque()

    def put(
        self, do: Callable[[], None], overdue: Callable[[], None], seconds: float, *, is_kept: bool = False
    ) -> None:
        self.tasks.append(do)

    def wait(self, seconds: float | None = None) -> bool:
        """What is asked of two lanes is done in the order in which it was asked for: nothing is left to wait for."""
        return True


class SteppedArchive(StorageArchive):
    """The archive of one attempt."""

    def __init__(
        self,
        root: MemoryFolder,
        attempt: int,
        num_microbatches: int,
        distrusted: tuple[Distrust, ...],
        post: Post,
        is_superseded: Callable[[], bool],
    ) -> None:
        job = JobTerms("job", num_microbatches, radices_of(num_microbatches), seed=0, global_batch=num_microbatches)
        super().__init__(ArchiveTerms(job, root, KEEP_ALL, attempt, distrusted=distrusted), post, is_superseded)
        self.lane, self.clearing = SteppedLane(), SteppedLane()
        self._commits = self._searches = self.lane  # type: ignore[assignment]
        self._clearing._lane = self.clearing  # type: ignore[assignment]


def whole_checkpoints(root: MemoryFolder) -> list[tuple[int, int]]:
    """(attempt, step) of all that exist, oldest first."""
    return [key_of(folder.name) for folder in checkpoint_folders(root) if folder.exists(MANIFEST_NAME)]
