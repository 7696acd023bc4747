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
    is_wanted: bool = False
    """The user asked for one, and neither it nor its failure is known yet."""
    _wanted_from: int = 0
    """The step at which it was asked for."""
    _asked_in: int = 0
    """The generation whose members were told of it."""
    _parts: dict[str, dict[int, StripeWritten]] = field(default_factory=dict)
    _failed: dict[str, StripeFailed] = field(default_factory=dict)

    def start(self, now: float) -> None:
        """Training began: the first interval runs from here."""
        if self.interval_s is not None and self.due_at is None:
            self.due_at = now + self.interval_s

    def want(self, step: int) -> None:
        """The user asks for one, of this step or a later one."""
        self.is_wanted, self._wanted_from, self._asked_in = True, step, 0

    def rewind(self, step: int) -> None:
        """The job goes back to a checkpoint: what is wanted may be of any step from there."""
        self._wanted_from = min(self._wanted_from, step)

    def next_request(self, now: float, generation: int, *, is_settled: bool) -> int | None:
        """The number of a request to tell the members of this generation now: one is due, or the user wants one.

        What the user wants is asked for again in each generation, until it is there: requests die with their members.
        """
        is_due = is_settled and self.due_at is not None and now >= self.due_at and self.interval_s is not None
        if not is_due and not (self.is_wanted and self._asked_in != generation):
            return None
        if is_due and self.interval_s is not None:
            self.due_at = now + self.interval_s
        self._asked_in = generation
        self.request += 1
        return self.request

    def on_committed(self, step: int) -> None:
        """A manifest is on storage."""
        self.committed_step = max(self.committed_step, step)
        self.on_answered(step)

    def on_answered(self, step: int) -> None:
        """The checkpoint of this step is there, or its failure was told."""
        if step >= self._wanted_from:
            self.is_wanted = False

    def on_written(self, part: StripeWritten) -> CompleteCheckpoint | None:
        """Take in a stripe; the checkpoint, once it is whole. Parts of another generation's cut are dropped."""
        failed = self._failed.get(part.folder)
        if failed is not None and failed.generation >= part.generation:
            return None
        parts = self._parts.setdefault(part.folder, {})
        for index in [index for index, other in parts.items() if other.generation < part.generation]:
            del parts[index]
        if any(other.generation > part.generation for other in parts.values()):
            return None
        parts[part.index] = part
        if len(parts) < part.count:
            return None
        self._forget_up_to(part.step)
        ordered = [parts[index] for index in sorted(parts)]
        return CompleteCheckpoint(
            folder=part.folder,
            step=part.step,
            generation=part.generation,
            files=tuple(file for one in ordered for file in one.files),
            terms=ordered[0].terms,
        )

    def on_failed(self, part: StripeFailed) -> bool:
        """A stripe could not be written: this checkpoint will not be. Returns whether that is news."""
        self.on_answered(part.step)
        self._parts.pop(part.folder, None)
        known = self._failed.get(part.folder)
        if known is not None and known.generation >= part.generation:
            return False
        self._failed[part.folder] = part
        return True

    def _forget_up_to(self, step: int) -> None:
        """Every worker writes its parts in order: of older checkpoints nothing more is to come."""
        self._parts = {name: parts for name, parts in self._parts.items() if next(iter(parts.values())).step > step}
        self._failed = {name: one for name, one in self._failed.items() if one.step > step}

    def forget_unfinished(self) -> bool:
        """Members changed: parts that are missing will not come. Returns whether any checkpoint was lost by it."""
        lost = bool(self._parts)
        self._parts.clear()
        self._failed.clear()
        return lost
