"""The header: what every worker says once a step, and the one decision that all take from all headers.

Headers ride in phase B of the reduction, so whoever completes a step holds the headers of all members, and all hold the
same ones. No vote, no round trip: the same pure function of the same table.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from rubato.errors import ProtocolError

_FIXED = struct.Struct("<15qd")
_SLOT = struct.Struct("<dd")
ALIGNMENT = 64
"""Bytes; vector kernels treat unaligned heads in another order."""


class Leaving(IntEnum):
    """Whether training is to end at the next boundary; the highest of all headers wins."""

    NO = 0
    PAUSE = 1
    STOP = 2


@dataclass(frozen=True)
class Header:
    """What one worker says in one step."""

    attempt: int
    generation: int
    step: int
    formed: int
    """The highest generation whose group it has formed (or may leave for); its present one where there is none."""
    ready: int
    """The highest generation it may switch to: formed, and its joiners are brought up to date."""
    leaving: Leaving
    checkpoint: int
    """A checkpoint request it has not acted on yet; 0: none."""
    is_finite: bool
    """Of the chunk of the reduced gradient that it owns."""
    digest: int | None
    """Of its whole state at the start of the step, where this step compares them."""
    compute_ns: int
    """Spent on its own microbatches, reading them included."""
    slots: tuple[tuple[float, float], ...]
    """(loss, weight) of each microbatch; (0, 0) where another worker computed it."""
    again: bool = False
    """Whether it sent gradients that changed afterwards: all exchange the step's gradients once more."""
    audit: int | None = None
    """Digest of the gradient of a microbatch that others have computed too, where this step compares that."""
    kept: float = 0.0
    """Norm of the gradients that it keeps back if the step counts, where the aggregation does that."""

    def pack(self) -> bytes:
        """`header_bytes(V)` bytes."""
        digest = self.digest or 0
        fixed = _FIXED.pack(
            self.attempt,
            self.generation,
            self.step,
            self.ready,
            int(self.leaving),
            self.checkpoint,
            int(self.is_finite),
            int(self.digest is not None),
            digest,
            self.compute_ns,
            len(self.slots),
            self.formed,
            int(self.again),
            int(self.audit is not None),
            self.audit or 0,
            self.kept,
        )
        body = fixed + b"".join(_SLOT.pack(*slot) for slot in self.slots)
        return body.ljust(header_bytes(len(self.slots)), b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """The header of packed bytes.

        Raises:
            ProtocolError: these are no header's bytes.
        """
        if len(data) < _FIXED.size:
            raise ProtocolError(f"a header cannot have {len(data)} bytes")
        fields = _FIXED.unpack_from(data)
        count = fields[10]
        if count < 1 or header_bytes(count) != len(data) or fields[4] not in set(Leaving):
            raise ProtocolError(f"a header names {count} microbatches in {len(data)} bytes, leaving {fields[4]}")
        slots = tuple(_SLOT.unpack_from(data, _FIXED.size + index * _SLOT.size) for index in range(count))
        return cls(
            attempt=fields[0],
            generation=fields[1],
            step=fields[2],
            formed=fields[11],
            ready=fields[3],
            leaving=Leaving(fields[4]),
            checkpoint=fields[5],
            is_finite=bool(fields[6]),
            digest=fields[8] if fields[7] else None,
            compute_ns=fields[9],
            slots=slots,
            again=bool(fields[12]),
            audit=fields[14] if fields[13] else None,
            kept=fields[15],
        )


def header_bytes(num_microbatches: int) -> int:
    """Size of a packed header, a multiple of 64."""
    size = _FIXED.size + num_microbatches * _SLOT.size
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Decision:
    """What all members do at the boundary after this step."""

    feed: int
    """Generation whose joiners get the state of this boundary, in the background; 0: none."""
    switch_to: int
    """Generation to switch to; 0: stay."""
    leaving: Leaving
    checkpoint: int
    """The request to act on; 0: none."""
    is_finite: bool
    loss: float
    """Weighted mean over the step's microbatches, summed in float64 in the order of the microbatches."""
    weight: float
    """Samples (or the weights that stand for them) in the step."""
    pace: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """No decision, for the controller alone. By rank: nanoseconds spent, on so many microbatches."""


def decide(headers: Sequence[Header]) -> Decision:
    """The decision of a step from the headers of all its members.

    To feed joiners and to switch, every member must name the very same generation: one that only some have formed (its
    joiner died meanwhile, and another superseded it) is passed over until all agree.

    Raises:
        ProtocolError: headers of different steps, or a microbatch computed by two workers or by none.
    """
    first = headers[0]
    for header in headers:
        if (header.attempt, header.generation, header.step) != (first.attempt, first.generation, first.step):
            raise ProtocolError(f"headers of different steps met: {header} and {first}")
    slots = [_only_slot(column) for column in zip(*(header.slots for header in headers), strict=True)]
    weight = sum(slot[1] for slot in slots)
    weighted = 0.0
    for loss, share in slots:
        weighted += loss * share
    return Decision(
        feed=_agreed([header.formed for header in headers], above=first.generation),
        switch_to=_agreed([header.ready for header in headers], above=first.generation),
        leaving=max(header.leaving for header in headers),
        checkpoint=max(header.checkpoint for header in headers),
        is_finite=all(header.is_finite for header in headers),
        loss=weighted / weight if weight else 0.0,
        weight=weight,
        pace=tuple((header.compute_ns, sum(weight != 0.0 for _, weight in header.slots)) for header in headers),
    )


def _agreed(numbers: Sequence[int], *, above: int) -> int:
    """The generation that all name, if it is a later one; else 0."""
    return numbers[0] if len(set(numbers)) == 1 and numbers[0] > above else 0


def _only_slot(column: Sequence[tuple[float, float]]) -> tuple[float, float]:
    filled = [slot for slot in column if slot[1] != 0.0]
    if len(filled) > 1:
        raise ProtocolError(f"a microbatch was computed by {len(filled)} workers")
    return filled[0] if filled else (0.0, 0.0)


def minority(digests: Sequence[int | None]) -> set[int]:
    """Ranks whose state differs from what a strict majority holds; all ranks where there is no majority.

    Args:    digests: by rank; None: not said in this step.
    Returns: empty when all that were said are equal.
    """
    said = [digest for digest in digests if digest is not None]
    if len(set(said)) <= 1:
        return set()
    value, count = Counter(said).most_common(1)[0]
    if 2 * count <= len(said):
        return set(range(len(digests)))
    return {rank for rank, digest in enumerate(digests) if digest is not None and digest != value}
