"""Checkpoints in the making: when to ask for one, and which parts of each are on storage. Pure."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from rubato.checkpoint.manifest import key_of
from rubato.engine.coordinator.intervals import best_interval_s
from rubato.engine.coordinator.orders import ManifestCommitted
from rubato.wire.cluster import Distrust
from rubato.wire.worker import StripeFailed, StripeWritten

MOST_FAILED = 16
"""So many that failed are known of: more are never being written at a time."""
_VARIES = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""What differs between causes that are the same: steps, sizes, names of files."""


@dataclass(frozen=True)
class CompleteCheckpoint:
    """All stripes are written: the manifest can be committed."""

    folder: str
    step: int
    generation: int
    files: tuple[dict[str, Any], ...]
    terms: dict[str, Any]


@dataclass(frozen=True)
class Reassigned:
    """A part that another worker is to write."""

    incarnation: str
    generation: int
    folder: str
    index: int


@dataclass
class CheckpointLedger:
    """Collects `stripe_written` and knows when the next checkpoint is due.

    Args:
        interval_s: seconds between checkpoints; None: the workers save every so many steps by themselves.
        request: where the numbers of requests begin: a later attempt's must be higher than all before.
        adapts: the interval follows what is measured, see `intervals`.
        longest_s: of an interval that adapts.
    """

    interval_s: float | None
    request: int
    adapts: bool = False
    longest_s: float = 600.0
    due_at: float | None = None
    committed_step: int = -1
    """Step of the newest manifest known to be committed."""
    is_wanted: bool = False
    """The user asked for one, and neither it nor its failure is known yet."""
    lost_step: int = -1
    """Newest step whose checkpoint was lost with those who were writing it, or with the generation that began it, until
    one of it or later is known."""
    whole: CompleteCheckpoint | None = None
    """All parts of it are written, and its manifest is not ordered yet."""
    _wanted_from: int = 0
    """The step at which it was asked for."""
    _asked_in: int = 0
    """The generation whose members were told of it."""
    _unanswered_in: int = 0
    """The generation whose members were told to save, and of whose checkpoint nothing is known yet: neither that it is
    there nor that it failed. 0: none. A new generation counts anew: requests die with their members."""
    _parts: dict[str, dict[int, StripeWritten]] = field(default_factory=dict)
    _committing: dict[str, int] = field(default_factory=dict)
    """Folders whose manifest is being written, with the generation of their parts."""
    _failed: dict[str, StripeFailed] = field(default_factory=dict)
    _cause: str = ""
    """Of the failures since the last that is there, while it is the same."""
    _in_a_row: int = 0
    """Failures of that cause."""
    _untold: int = 0
    """Of those, since one was told."""
    _heirs: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """(folder, generation, index) of parts that were given to another worker."""
    _distrusted: list[Distrust] = field(default_factory=list)
    _started_at: float | None = None
    _losses: int = 0

    def start(self, now: float) -> None:
        """Training began: the first interval runs from here."""
        if self._started_at is None:
            self._started_at = now
        if self.interval_s is not None and self.due_at is None:
            self.due_at = now + self.interval_s

    def on_all_lost(self) -> None:
        """Nobody has the state: nothing that is in the making will be finished."""
        self._losses += 1
        self.lost_step = -1
        self.forget_unfinished()

    def want(self, step: int) -> None:
        """The user asks for one, of this step or a later one."""
        self.is_wanted, self._wanted_from, self._asked_in = True, step, 0

    def rewind(self, step: int) -> None:
        """The job goes back to a checkpoint: what is wanted may be of any step from there."""
        self._wanted_from = min(self._wanted_from, step)
        self.committed_step = min(self.committed_step, step)
        self.lost_step = -1

    def next_request(self, now: float, generation: int, *, is_settled: bool) -> int | None:
        """The number of a request to tell the members of this generation now: one is due, wanted, or was lost.

        What the user wants, or what was lost, is asked for again in each generation, until it is there: requests die
        with their members. One that is only due waits until the one before is answered: else it would stop the
        training for a write that goes on, and then be skipped.
        """
        is_due = is_settled and self.due_at is not None and now >= self.due_at and self.interval_s is not None
        is_due &= self._unanswered_in != generation
        is_owed = self.is_wanted or (self.lost_step >= 0 and is_settled)
        if not is_due and not (is_owed and self._asked_in != generation):
            return None
        if is_due and self.interval_s is not None:
            self.due_at = now + self.interval_s
        self._asked_in = self._unanswered_in = generation
        self.request += 1
        return self.request

    def on_manifest(self, folder: str) -> None:
        """It is known what became of its manifest."""
        self._committing.pop(folder, None)

    def on_committed(self, step: int) -> None:
        """A manifest is on storage."""
        self._forget_heirs()
        self._cause, self._in_a_row, self._untold = "", 0, 0
        self.committed_step = max(self.committed_step, step)
        self.on_answered(step)

    def on_answered(self, step: int) -> None:
        """The checkpoint of this step is there, or its failure was told."""
        self._unanswered_in = 0
        if step >= self.lost_step:
            self.lost_step = -1
        if step >= self._wanted_from:
            self.is_wanted = False

    def on_written(self, part: StripeWritten, now: float) -> CompleteCheckpoint | None:
        """Take in a stripe; the checkpoint, once it is whole. Parts of an older cut, or of what is saved, count not."""
        failed = self._failed.get(part.folder)
        if part.step <= self.committed_step or self.is_distrusted(part):
            return None
        if failed is not None and failed.generation >= part.generation:
            return None
        if self._committing.get(part.folder, -1) >= part.generation:
            return None
        parts = self._parts.setdefault(part.folder, {})
        older = [index for index, other in parts.items() if other.generation < part.generation]
        for index in older:
            del parts[index]
        is_old = any(other.generation > part.generation for other in parts.values())
        if not is_old:
            parts[part.index] = part
        if is_old or len(parts) < part.count:
            if is_old or older:  # who wrote what is old is beyond that boundary, and may not write of it again
                self.lost_step, self._asked_in = max(self.lost_step, part.step), 0
            return None
        self._forget_up_to(part.step)
        self._committing[part.folder] = part.generation
        ordered = [parts[index] for index in sorted(parts)]
        stall_s, write_s = (
            max(float(one.terms.get(name, 0.0)) for one in ordered) for name in ("stall_seconds", "seconds")
        )
        if self.adapts and self._started_at is not None:
            self.interval_s = best_interval_s(stall_s, write_s, now - self._started_at, self._losses, self.longest_s)
        return CompleteCheckpoint(
            folder=part.folder,
            step=part.step,
            generation=part.generation,
            files=tuple(file for one in ordered for file in one.files),
            terms={**ordered[0].terms, "stall_seconds": stall_s, "seconds": write_s},
        )

    def on_lost(self, living: Container[str]) -> list[Reassigned]:
        """Workers died: give what they owe to those that keep copies; drop checkpoints that nobody can finish.

        Each part is copied twice, by its owner and by the worker of the next rank.
        """
        orders = []
        for folder, parts in list(self._parts.items()):
            one = next(iter(parts.values()))
            for index in [index for index in range(len(one.members)) if index not in parts]:
                key = (folder, one.generation, index)
                if self._heirs.get(key, one.members[index]) in living:
                    continue
                heir = one.members[(index + 1) % len(one.members)]
                if key in self._heirs or heir not in living:
                    self.lost_step, self._asked_in = max(self.lost_step, one.step), 0
                    # Not `on_failed`: what the user asked for is still wanted.
                    self._failed[folder] = StripeFailed("", folder, one.step, "its writers were lost", one.generation)
                    del self._parts[folder]
                    break
                self._heirs[key] = heir
                orders.append(Reassigned(heir, one.generation, folder, index))
        return orders

    def on_failed(self, part: StripeFailed, generation: int) -> bool:
        """A stripe could not be written: this checkpoint will not be, but where another generation saves it anew.

        Args:    generation: that trains.
        Returns: whether that is news.
        """
        known = self._failed.get(part.folder)
        if known is not None and known.generation >= part.generation:
            return False
        if part.step <= self.committed_step or self._committing.get(part.folder, -1) > part.generation:
            return False
        if any(other.generation > part.generation for other in self._parts.get(part.folder, {}).values()):
            return False
        self._parts.pop(part.folder, None)
        self._forget_heirs()
        self._failed.pop(part.folder, None)
        self._failed[part.folder] = part
        if len(self._failed) > MOST_FAILED:  # nothing is whole that would have them forgotten
            del self._failed[next(iter(self._failed))]
        if part.generation < generation:
            # The members of this one may save the same step, at a pause or at the end; else it is asked for again.
            self.lost_step, self._asked_in = max(self.lost_step, part.step), 0
            return False
        self.on_answered(part.step)
        return True

    def count_failure(self, cause: str, *, is_awaited: bool) -> int | None:
        """One more failed. How many of its cause this one tells of, where it is time to say so; None: it is not.

        It is at the first in a row, the second, the fourth, and so on.

        Args:    is_awaited: somebody waits for this one, and is told in any case.
        """
        kind = _VARIES.sub("#", cause)
        if kind != self._cause:
            self._cause, self._in_a_row, self._untold = kind, 0, 0
        self._in_a_row += 1
        self._untold += 1
        if not is_awaited and self._in_a_row.bit_count() != 1:
            return None
        told, self._untold = self._untold, 0
        return told

    def distrust(self, which: Distrust) -> None:
        """What these members saved, or are saving, may be wrong."""
        self._distrusted.append(which)
        self._unanswered_in = 0
        self.committed_step = min(self.committed_step, which.after_step)
        self._parts = {
            name: parts for name, parts in self._parts.items() if not self.is_distrusted(next(iter(parts.values())))
        }
        if self.whole is not None and self.is_distrusted(self.whole):
            self.whole = None

    def is_distrusted(self, saved: StripeWritten | CompleteCheckpoint | ManifestCommitted) -> bool:
        """Whether it counts for nothing."""
        attempt, step = key_of(saved.folder)
        return any(which.covers(attempt, saved.generation, step) for which in self._distrusted)

    def _forget_up_to(self, step: int) -> None:
        """Every worker writes its parts in order: of older checkpoints nothing more is to come."""
        self._parts = {name: parts for name, parts in self._parts.items() if next(iter(parts.values())).step > step}
        self._failed = {name: one for name, one in self._failed.items() if one.step > step}

    def _forget_heirs(self) -> None:
        """Of checkpoints that nobody writes any more."""
        self._heirs = {key: heir for key, heir in self._heirs.items() if key[0] in self._parts}

    def forget_unfinished(self) -> None:
        """Parts that are missing will not come."""
        self.whole = None
        self._parts.clear()
        self._failed.clear()
        self._heirs.clear()
