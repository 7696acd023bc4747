"""One worker's part of a checkpoint: copy at the boundary, write in the background, say so."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Any

import torch

from rubato.checkpoint.layout import layout
from rubato.checkpoint.manifest import folder_name
from rubato.checkpoint.storage import open_folder
from rubato.checkpoint.stripes import copy_stripe, write_document
from rubato.engine.state import TrainingState
from rubato.wire import worker as wire
from rubato.wire.codec import to_json

Say = Callable[[wire.Message], None]


class Saver:
    """Writes stripes. Training is held up only by the copy of the state (and by a write that is still going on).

    Args:    storage: path or URI of the job's checkpoints; empty: nothing is written.
    """

    def __init__(self, storage: str, incarnation: str, code_digest: str, say: Say) -> None:
        self._root = open_folder(storage) if storage else None
        self._incarnation = incarnation
        self._code_digest = code_digest
        self._say = say
        self._writer: threading.Thread | None = None

    def save(
        self,
        state: TrainingState,
        record: wire.GenerationRecord,
        rank: int,
        *,
        step: int,
        extra: dict[str, Any],
        metrics: dict[str, float],
    ) -> None:
        """Begin to write this worker's stripe of the state after `step` committed steps."""
        if self._root is None:
            return
        self.wait()
        document, tensors = state.encode()
        entries = layout(tensors)
        stripe = copy_stripe(rank, record.world, tensors)
        folder = self._root / folder_name(record.attempt, step)
        full = {"state": document, "extra": extra}
        terms = {
            "code_digest": self._code_digest,
            "versions": versions(),
            "metrics": metrics,
        }

        def write() -> None:
            try:
                files = [stripe.write(folder)]
                if rank == 0:
                    files.insert(0, write_document(folder, full, entries))
            except Exception as error:  # whatever it is: an end of the job waits for this answer
                self._say(wire.StripeFailed(self._incarnation, folder.name, step, f"{error}", record.number))
                return
            self._say(
                wire.StripeWritten(
                    incarnation=self._incarnation,
                    generation=record.number,
                    step=step,
                    folder=folder.name,
                    index=rank,
                    count=record.world,
                    files=tuple(to_json(file) for file in files),
                    terms=terms,
                )
            )

        self._writer = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Block until the write that is going on is done."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None


def versions() -> dict[str, str]:
    """What the bits depend on beside the program."""
    return {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
