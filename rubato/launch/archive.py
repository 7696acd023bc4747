"""Checkpoints on storage, as a host needs them: found and committed beside the loop, older ones then cleared away."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rubato.checkpoint.due import Lane, due_s
from rubato.checkpoint.manifest import (
    MANIFEST_NAME,
    JobTerms,
    Manifest,
    checkpoint_folders,
    commit_manifest,
    find_latest,
    key_of,
    open_checkpoint,
    read_manifest,
)
from rubato.checkpoint.retention import Retention, drop, sweep
from rubato.checkpoint.storage import Folder
from rubato.engine.coordinator.orders import CheckpointFound, CommitManifest, DropCheckpoints, Emit, ManifestCommitted
from rubato.engine.tree import radices_of
from rubato.errors import CheckpointError, StorageUnreachable, UserError
from rubato.launch.clearing import Clearing
from rubato.launch.host import Post
from rubato.wire.cluster import Distrust
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec
from rubato.wire.units import format_bytes

RETRY_S = 5.0
"""Between two looks at a storage that does not answer."""
REMIND_S = 60.0
"""Between two events that say the same of it."""


@dataclass(frozen=True)
class ArchiveTerms:
    """What an archive needs to know of its job."""

    job: JobTerms
    root: Folder | None
    """The job's folder; None: nothing is saved."""
    retention: Retention
    attempt: int
    """The one that is led: no folder of a later one is touched."""
    origin: Folder | None = None
    """A checkpoint of another job to begin from, while there is none of this one."""
    distrusted: tuple[Distrust, ...] = ()
    """Of its own, what attempts before found to be wrong."""
    newest: str = ""
    """Of its own, the name of the newest that attempts before told of; empty: none."""

    @classmethod
    def of(
        cls,
        job_id: str,
        root: Folder | None,
        spec: JobSpec,
        attempt: int,
        origin: Folder | None = None,
        distrusted: tuple[Distrust, ...] = (),
        newest: str = "",
    ) -> ArchiveTerms:
        """From a job spec."""
        return cls(job_terms(job_id, spec), root, Retention.of(spec.checkpoint), attempt, origin, distrusted, newest)


def job_terms(job_id: str, spec: JobSpec) -> JobTerms:
    """What the manifests of a job have in common."""
    count = spec.num_microbatches
    return JobTerms(job_id, count, radices_of(count) if spec.reproducible else (), spec.seed, spec.batch.global_size)


def check_root(root: Folder) -> None:
    """Refuse a checkpoint in place of the folder that keeps checkpoints: nothing would be found in it.

    Raises:
        UserError: it is one.  StorageUnreachable: the storage does not answer.
    """
    if root.exists(MANIFEST_NAME):
        raise UserError(
            f"{root} is itself a checkpoint: name the folder that it lies in, {str(root).rpartition('/')[0]}, and "
            "training goes on from the newest one there"
        )


def check_terms(root: Folder, terms: JobTerms) -> None:
    """Refuse to go on from a folder whose newest checkpoint was made under other terms.

    Raises:
        UserError: names what differs, and what to do.  StorageUnreachable, OSError: the storage does not answer.
    """
    for folder in reversed(checkpoint_folders(root)):
        try:
            manifest = read_manifest(folder)
        except StorageUnreachable:
            raise  # it may be as good as ever
        except CheckpointError:
            continue  # looked at, and told, when the newest that holds is searched for
        terms.check(manifest, f"checkpoint {folder.name} in {root}")
        return


def describe_damage(root: object, causes: Sequence[str]) -> str:
    """Why nothing is begun where no checkpoint holds.

    Args:    causes: of each, with its name.
    """
    return (
        f"No checkpoint in {root} holds: {'; '.join(causes)}. Put one of them back from a copy, or move their folders "
        "away to begin afresh."
    )


def next_attempt(root: Folder) -> int:
    """One more than any attempt that has left something: what this run saves is newer than all of it.

    Raises:
        OSError: the storage does not answer.
    """
    names = [name.split("-")[0] for name in root.folders()]
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


class StorageArchive:
    """Answers the host's questions about checkpoints, one after the other, without making it wait for the storage.

    Where the storage hangs, a manifest is given up when it is due; a search is told of, and goes on: to begin without
    what lies there would throw it away. So would beginning on a storage that holds nothing, where something was saved.
    """

    def __init__(self, terms: ArchiveTerms, post: Post, is_superseded: Callable[[], bool] = lambda: False) -> None:
        """An archive of one attempt.

        Args:    is_superseded: asked before storage is changed or begun from; whether a newer attempt is known to lead.
        """
        self._terms = terms
        self._post = post
        self._is_superseded = is_superseded
        self._is_closed = threading.Event()
        self._clearing = Clearing(terms.root, terms.retention, post, is_superseded)
        # Two, so that a search, which must come to its end, does not fall due behind a manifest that hangs.
        self._commits, self._searches = Lane("archive"), Lane("archive-search")
        because = "the states of its workers had differed"
        self._drops = [DropCheckpoints(which, because) for which in terms.distrusted]
        self._num_dropped = 0
        """The first of them that are done."""
        self._drops_turn = threading.Lock()
        self._newest = terms.newest
        """Name of the newest that must be there; empty: none must."""
        self._told: tuple[str, float] = ("", 0.0)
        """Why the storage is asked again, and when that was said."""

    def find(self) -> None:
        """Look for the newest checkpoint that verifies; `CheckpointFound` is posted.

        Called only where no worker has any state: what workers have begun to write is deleted. A superseded controller
        gets no answer: it would begin the job beside its successor.
        """
        self._searches.put(self._find, self._tell_waiting, due_s(), is_kept=True)

    def commit(self, order: CommitManifest) -> None:
        """Write the manifest; `ManifestCommitted` is posted, the event before it. Then older ones are cleared away."""
        # One that is there already is read, to be compared.
        seconds = due_s(sum(int(file["bytes"]) for file in order.files))
        num_drops = len(self._drops)
        self._commits.put(lambda: self._commit(order, num_drops), lambda: self._give_up(order, seconds), seconds)

    def drop(self, order: DropCheckpoints) -> None:
        """Delete checkpoints, before anything that is asked for from now on; events tell of each."""
        self._drops.append(order)
        self._commits.put(self._drop, lambda: None, due_s())

    def finish(self) -> None:
        """Nothing more will be asked for: what is being cleared away is given a short time, and told of before."""
        self._clearing.finish()

    def close(self, timeout_s: float = 10.0) -> None:
        """End the threads after what they have been asked for; what is being cleared away is left."""
        self._is_closed.set()
        for lane in (self._commits, self._searches, self._clearing):
            lane.close(timeout_s)

    def _tell_waiting(self) -> None:
        message = (
            f"looking for the newest checkpoint in {self._terms.root} has not come to an end for {due_s():.0f} s, and "
            "the job waits for it. If the storage hangs: is its server there, and can this machine reach it?"
        )
        self._post(Emit(EventKind.CHECKPOINT_FAILED.value, message, data={"cause": "the storage hangs"}))

    def _give_up(self, order: CommitManifest, seconds: float) -> None:
        cause = f"its manifest was not written within {seconds:.0f} s: the storage hangs; is its server there?"
        self._post(ManifestCommitted(order.folder, order.step, order.generation, error=cause))

    def _find(self) -> None:
        try:
            answer = self._look()
        except Exception as error:  # whatever it is: the job waits for this answer
            traceback.print_exc()
            cause = f"{type(error).__name__}: {error}"
            answer = CheckpointFound(unusable=f"Checkpoints in {self._terms.root} cannot be looked for: {cause}")
        if answer is not None:
            self._post(answer)

    def _look(self) -> CheckpointFound | None:
        """The answer to a search; None: closed before there was one, or superseded."""
        is_quiet = self._commits.wait()  # what is being committed is to be found
        self._clearing.void()
        corrupt: list[tuple[str, str]] = []
        found, unusable = None, ""
        root, origin = self._terms.root, self._terms.origin
        while root is not None:
            try:
                found = self._look_once(root, corrupt)
                if self._is_superseded():
                    return None
                if is_quiet:  # nothing is being committed: what is unfinished stays so
                    sweep(root, before=(self._terms.attempt + 1, 0))
                break
            except (CheckpointError, OSError) as error:
                # Nothing is known of what lies there: to begin anew would throw away all that was trained.
                self._tell_retry("checkpoints cannot be looked for", error)
                corrupt.clear()
            if self._is_closed.wait(RETRY_S):
                return None
        if found is None and corrupt:
            # To begin anew would throw away all that was trained, and in time delete what might be mended.
            unusable = describe_damage(root, [f"{name}: {cause}" for name, cause in corrupt])
        elif found is None and origin is not None:
            try:
                found = origin, self._open_origin(origin)
            except StorageUnreachable:
                return None  # nobody waits for it any more
            except (CheckpointError, OSError, UserError) as error:
                advice = "Name a checkpoint that is whole, or leave it out to begin afresh."
                unusable = f"checkpoint.resume_from cannot be used: {error}. {advice}"
        if found is None:
            return CheckpointFound(corrupt=tuple(corrupt), unusable=unusable)
        folder, manifest = found
        rows = manifest.rows if manifest.job == self._terms.job.job_id else ()
        return CheckpointFound(str(folder), manifest.step, tuple(corrupt), rows)

    def _look_once(self, root: Folder, corrupt: list[tuple[str, str]]) -> tuple[Folder, Manifest] | None:
        """The newest that verifies; notes finished ones that do not."""

        def pass_over(folder: Folder, cause: str) -> None:
            # Without a manifest it was never finished: nothing is wrong with that.
            if folder.exists(MANIFEST_NAME):
                corrupt.append((folder.name, cause))

        if not self._has_dropped():
            raise CheckpointError("some do not count any more and could not be deleted")
        found = find_latest(root, pass_over)
        if found is not None:
            self._clearing.know(found[0].name)
        elif self._newest and not corrupt:
            raise CheckpointError(
                f"no checkpoint lies in {root}, but {self._newest} was saved there: is the storage mounted? Where all "
                "were deleted on purpose, cancel the job and begin it anew"
            )
        return found

    def _open_origin(self, origin: Folder) -> Manifest:
        """The checkpoint to begin from, asked for until its storage answers.

        Raises:
            CheckpointError, OSError, UserError: it cannot be used.  StorageUnreachable: closed before it answered.
        """
        while True:
            try:
                manifest = open_checkpoint(origin)
                break
            except StorageUnreachable as error:
                self._tell_retry(f"the checkpoint to begin from ({origin}) cannot be read", error)
                if self._is_closed.wait(RETRY_S):
                    raise
        self._terms.job.check(manifest, f"it ({origin.name})")
        return manifest

    def _tell_retry(self, what: str, error: Exception) -> None:
        cause, said_at = self._told
        if cause == str(error) and time.monotonic() < said_at + REMIND_S:
            return
        self._told = str(error), time.monotonic()
        message = f"{what}, trying again every {RETRY_S:g} s: {error}"
        self._post(Emit(EventKind.CHECKPOINT_FAILED.value, message, data={"cause": str(error)}))

    def _commit(self, order: CommitManifest, num_drops: int) -> None:
        """Args:    num_drops: how many drops had been asked for when this was."""
        try:
            if not self._has_dropped():
                raise CheckpointError("others that do not count any more could not be deleted")
            self._write(order)
            if any(order.step > later.which.after_step for later in self._drops[num_drops:]):
                # It was on its way, maybe for long, when its state turned out to be wrong.
                with self._drops_turn:
                    self._num_dropped = min(self._num_dropped, num_drops)
                self._has_dropped()
                raise CheckpointError("the states of the workers turned out to differ")
        except Exception as error:  # whatever it is: training goes on without this checkpoint, and the answer must come
            self._post(ManifestCommitted(order.folder, order.step, order.generation, error=f"{error}"))
            return
        self._newest = order.folder
        # Told after the event: an end that waits for it comes after that.
        self._post(ManifestCommitted(order.folder, order.step, order.generation))
        if self._searches.wait(0.0):  # else nothing may be deleted: it may be what is found
            self._clearing.after(order)

    def _write(self, order: CommitManifest) -> None:
        terms = self._terms
        if terms.root is None:
            raise CheckpointError("this job has no storage for checkpoints")
        if self._is_superseded():
            raise CheckpointError("a newer attempt leads this job")
        begun = time.monotonic()
        wanted = terms.job.manifest(
            order.folder,
            step=order.step,
            generation=order.generation,
            files=order.files,
            terms=order.terms,
            rows=order.rows,
        )
        manifest, record = commit_manifest(terms.root / order.folder, wanted)
        files = [*manifest.files, record]
        size = sum(file.bytes for file in files)
        self._emit(
            EventKind.CHECKPOINT_COMMITTED,
            f"the checkpoint of step {order.step} was saved, {format_bytes(size)}",
            order,
            checkpoint_id=order.folder,
            bytes=size,
            seconds=round(float(order.terms.get("seconds", 0.0)) + time.monotonic() - begun, 4),
            stall_seconds=round(float(order.terms.get("stall_seconds", 0.0)), 4),
            metrics={name: value for name, value in manifest.metrics.items() if abs(value) < float("inf")},
            files=to_json(files),
        )

    def _drop(self) -> None:
        self._has_dropped()

    def _has_dropped(self) -> bool:
        """Delete what does not count any more; whether nothing of it is left.

        Else it is tried again before the next look or commit.
        """
        root = self._terms.root
        with self._drops_turn:
            while root is not None and self._num_dropped < len(self._drops) and not self._is_superseded():
                order = self._drops[self._num_dropped]
                self._clearing.void()
                try:
                    dropped = drop(root, order.which)
                except (OSError, CheckpointError) as error:
                    message = f"checkpoints that do not count any more cannot be deleted yet: {error}"
                    self._post(Emit(EventKind.CHECKPOINT_FAILED.value, message, data={"cause": str(error)}))
                    return False
                self._num_dropped += 1
                if self._newest and key_of(self._newest)[1] > order.which.after_step:
                    self._newest = ""  # it may have been among them, and the one before it is not known
                for name in dropped:
                    message = f"checkpoint {name} was deleted: {order.because}"
                    self._post(Emit(EventKind.CHECKPOINT_DELETED.value, message, data={"checkpoint_id": name}))
        return True

    def _emit(self, kind: EventKind, message: str, order: CommitManifest, **data: object) -> None:
        self._post(Emit(kind.value, message, order.step, order.generation, {"step": order.step, **data}))
