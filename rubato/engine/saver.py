"""One worker's part of a checkpoint: copy at the boundary, write in the background, say so."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rubato.checkpoint.due import Lane, due_s
from rubato.checkpoint.layout import layout
from rubato.checkpoint.manifest import folder_name
from rubato.checkpoint.storage import Folder, open_folder
from rubato.checkpoint.stripes import Stripe, copy_stripe, write_document
from rubato.data.order import ORDER
from rubato.engine.arithmetic import arithmetic_of
from rubato.engine.state import TrainingState
from rubato.wire import worker as wire
from rubato.wire.codec import to_json

BUSY_S = 5.0
"""The longest that training waits for one write that is still going on. One that takes longer is left alone."""

Say = Callable[[wire.Message], None]


@dataclass(frozen=True)
class _Staged:
    """What this worker holds of a checkpoint, apart from what training goes on to change."""

    folder: Folder
    generation: int
    members: tuple[str, ...]
    step: int
    stripes: dict[int, Stripe]
    """By index: the own one, and that of the rank before, in case its worker dies."""
    document: dict[str, Any]
    layout: list[dict[str, Any]]
    terms: dict[str, Any]
    begun: float


class Saver:
    """Writes stripes. Training is held up only by the copy of the state (and shortly, once, by a write that goes on).

    A write that hangs is given up when it is due (`checkpoint.due`). A checkpoint that falls due while the one before
    is still being written, or hangs, is skipped. Both are said as failures, so that nobody waits for it.

    Of W stripes a worker copies its own and the one of the rank before it: 2/W of the state, kept until the checkpoint
    is whole. So a checkpoint outlives the loss of any worker while it is written.

    Args:    storage: path or URI of the job's checkpoints; empty: nothing is written.
             device: on which the state is computed; default: the CPU.
    """

    def __init__(self, storage: str, incarnation: str, say: Say, device: torch.device | None = None) -> None:
        self._root = open_folder(storage) if storage else None
        self._incarnation = incarnation
        self._device = device or torch.device("cpu")
        self.program: dict[str, Any] = {}
        """What the manifest tells of it, once that is known; see `loading.program_of`."""
        self._say = say
        self._staged: _Staged | None = None
        self._owed: set[tuple[str, int, int]] = set()
        """(folder, generation, index) of parts to write as soon as they are copied: the order came before."""
        self._lock = threading.Lock()
        self._lane = Lane("checkpoint")
        self._is_left_alone = False
        """The write that goes on was waited for once, in vain."""

    def save(
        self,
        state: TrainingState,
        record: wire.GenerationRecord,
        rank: int,
        *,
        step: int,
        extra: dict[str, Any],
        metrics: dict[str, float],
        is_last: bool = False,
    ) -> None:
        """Begin to write this worker's stripe of the state after `step` committed steps.

        Args:    is_last: no other will follow, so a write that is still going on is waited for, unless it hangs.
        """
        if self._root is None:
            return
        begun = time.monotonic()
        folder = self._root / folder_name(record.attempt, step)
        patience_s = 0.0 if self._is_left_alone else BUSY_S
        self._is_left_alone = not self._lane.wait(None if is_last else patience_s)
        if self._is_left_alone:
            cause = _HANGS if self._lane.is_hung else "the one before is still being written; make them rarer"
            self._say(wire.StripeFailed(self._incarnation, folder.name, step, cause, record.number))
            return
        document, tensors = state.encode()
        indexes = {rank, (rank - 1) % record.world}
        staged = _Staged(
            folder=folder,
            generation=record.number,
            members=tuple(member.incarnation for member in record.members),
            step=step,
            stripes={index: copy_stripe(index, record.world, tensors) for index in indexes},
            document={"state": document, "extra": extra, "models": state.state_dict_names()},
            layout=layout(tensors),
            terms={
                **self.program,
                "versions": versions() | arithmetic_of(self._device),
                "metrics": dict(metrics),
            },
            begun=begun,
        )
        staged.terms["stall_seconds"] = time.monotonic() - begun
        with self._lock:
            self._staged = staged
            owed = [index for index in staged.stripes if self._key(staged, index) in self._owed]
            self._owed.clear()
        for index in (rank, *owed):
            self._begin(staged, index)

    def obey(self, command: wire.WriteStripe | wire.ForgetStripes) -> None:
        """Write, or drop, the copy of another worker's part."""
        with self._lock:
            staged = self._staged
            if isinstance(command, wire.ForgetStripes):
                if staged is not None and staged.folder.name == command.folder:
                    self._staged = None  # what is still to be written of it holds its own reference
                return
            key = (command.folder, command.generation, command.index)
            if staged is None or key != self._key(staged, command.index) or command.index not in staged.stripes:
                self._owed.add(key)
                return
        self._begin(staged, command.index)

    def wait(self) -> None:
        """Block until nothing is being written, or what is hangs."""
        self._lane.wait()

    def _key(self, staged: _Staged, index: int) -> tuple[str, int, int]:
        return staged.folder.name, staged.generation, index

    def _begin(self, staged: _Staged, index: int) -> None:
        seconds = due_s(sum(data.numel() * data.itemsize for data in staged.stripes[index].data))
        self._lane.put(
            lambda: self._say(self._write(staged, index)),
            lambda: self._say(self._failed(staged, f"{_HANGS} (nothing came of it for {seconds:.0f} s)")),
            seconds,
        )

    def _failed(self, staged: _Staged, cause: str) -> wire.StripeFailed:
        return wire.StripeFailed(self._incarnation, staged.folder.name, staged.step, cause, staged.generation)

    def _write(self, staged: _Staged, index: int) -> wire.Message:
        folder, stripe = staged.folder, staged.stripes[index]
        try:
            files = [stripe.write(folder)]
            if index == 0:
                files.insert(0, write_document(folder, staged.document, staged.layout))
        except Exception as error:  # whatever it is: an end of the job waits for this answer
            return self._failed(staged, f"{error}")
        return wire.StripeWritten(
            incarnation=self._incarnation,
            generation=staged.generation,
            step=staged.step,
            folder=folder.name,
            index=index,
            count=stripe.count,
            files=tuple(to_json(file) for file in files),
            terms={**staged.terms, "seconds": time.monotonic() - staged.begun},
            members=staged.members,
        )


_HANGS = (
    "the storage hangs: is its server there, and can this machine reach it? Training goes on, and checkpoints will be "
    "made when it answers"
)


def versions() -> dict[str, str]:
    """What the bits depend on beside the program."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "order": ORDER,
    }
