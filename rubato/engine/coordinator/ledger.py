"""Checkpoints in the making: when to ask for one, and which parts of each are on storage. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rubato.wire.worker import StripeFailed, StripeWritten


@dataclass(frozen=True)
class CompleteCheckpoint:
    """All stripes are written: the manifest can be committed."""

    folder: str
    step: int
    generation: int
    files: tuple[dict[str, Any], ...]
    terms: dict[str, Any]


@dataclass
class CheckpointLedger:
    """Collects `stripe_written` and knows when the next checkpoint is due.

    Args:
        interval_s: seconds between checkpoints; None: the workers save every so many steps by themselves.
        request: where the numbers of requests begin: a later attempt's must be higher than all before.
    """

    interval_s: float | None
    request: int
    due_at: float | None = None
    committed_step: int = -1
    """Step of the newest manifest known to be committed."""
    _parts: dict[str, dict[int, StripeWritten]] = field(default_factory=dict)

    def start(self, now: float) -> None:
        """Training began: the first interval runs from here."""
        if self.interval_s is not None and self.due_at is None:
            self.due_at = now + self.interval_s

    def next_request(self, now: float) -> int | None:
        """The number of a checkpoint request that is due now."""
        if self.due_at is None or now < self.due_at or self.interval_s is None:
            return None
        self.due_at = now + self.interval_s
        return self.ask()

    def ask(self) -> int:
        """A new request, beside the interval."""
        self.request += 1
        return self.request

    def on_written(self, part: StripeWritten) -> CompleteCheckpoint | None:
        """Take in a stripe; the checkpoint, once it is whole. Parts of another generation's cut are dropped."""
        parts = self._parts.setdefault(part.folder, {})
        for index in [index for index, other in parts.items() if other.generation < part.generation]:
            del parts[index]
        if any(other.generation > part.generation for other in parts.values()):
            return None
        parts[part.index] = part
        if len(parts) < part.count:
            return None
        del self._parts[part.folder]
        ordered = [parts[index] for index in sorted(parts)]
        return CompleteCheckpoint(
            folder=part.folder,
            step=part.step,
            generation=part.generation,
            files=tuple(file for one in ordered for file in one.files),
            terms=ordered[0].terms,
        )

    def on_failed(self, part: StripeFailed) -> None:
        """A stripe could not be written: this checkpoint will not be."""
        self._parts.pop(part.folder, None)

    def forget_unfinished(self) -> bool:
        """Members changed: parts that are missing will not come. Returns whether any checkpoint was lost by it."""
        lost = bool(self._parts)
        self._parts.clear()
        return lost
