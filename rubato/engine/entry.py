"""Entering a generation: the members compare where they stand, and a pure function says what each has to do.

Planned changes do not come here: all members stand at one boundary then, and `join` has brought the joiners to it.

    found     nobody has the state: all begin fresh, or each loads the checkpoint that the record names
    recover   some completed an exchange that others did not: these get its result, not the state; then the
              microbatches of the interrupted step that nobody holds are shared out
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rubato.engine.tree import balanced_owners, heirs
from rubato.errors import ProtocolError
from rubato.wire.worker import GenerationRecord

Key = tuple[int, int]
"""An exchange: (step, 0) is the reduction of the step, (step, k) the k-th evaluation after it."""
BEFORE_ALL: Key = (-1, 0)
_FIXED = struct.Struct("<8q")


@dataclass(frozen=True)
class Standing:
    """Where one member stands."""

    attempt: int
    generation: int
    has_state: bool
    last: Key
    """The last exchange it completed."""
    result_bytes: int
    """Size of that exchange's result, 0 where it does not have it (any more)."""
    working_on: int
    """The step whose microbatches it holds; -1: none."""
    held: frozenset[int]
    """These microbatches."""

    def pack(self, num_microbatches: int) -> bytes:
        """`standing_bytes(V)` bytes."""
        mask = sum(1 << leaf for leaf in self.held)
        fixed = _FIXED.pack(
            self.attempt,
            self.generation,
            int(self.has_state),
            self.last[0],
            self.last[1],
            self.result_bytes,
            self.working_on,
            0,
        )
        return fixed + mask.to_bytes(standing_bytes(num_microbatches) - _FIXED.size, "little")

    @classmethod
    def unpack(cls, data: bytes) -> Standing:
        """From packed bytes."""
        fields = _FIXED.unpack_from(data)
        mask = int.from_bytes(data[_FIXED.size :], "little")
        held = frozenset(leaf for leaf in range(mask.bit_length()) if mask >> leaf & 1)
        return cls(fields[0], fields[1], bool(fields[2]), (fields[3], fields[4]), fields[5], fields[6], held)


def standing_bytes(num_microbatches: int) -> int:
    """Size of a packed standing, a multiple of 8."""
    return _FIXED.size + -(-num_microbatches // 64) * 8


@dataclass(frozen=True)
class EntryPlan:
    """What the members do on entering; equal on all of them."""

    holders: tuple[int, ...]
    """All ranks, or none: all begin together."""
    behind: tuple[int, ...]
    """Ranks that get the result of exchange `last`."""
    source: int
    """The rank that sends it."""
    last: Key
    """The last exchange that is complete everywhere after entering."""
    owners_of_step: tuple[int, tuple[int, ...]] | None
    """For the interrupted step only: who holds, or has yet to compute, each microbatch. None: as the record says."""
    orphans: tuple[int, ...]
    """Microbatches of it that nobody holds: an heir computes those that are not empty."""


def decide_entry(record: GenerationRecord, standings: Sequence[Standing]) -> EntryPlan:
    """What to do, from where everybody stands.

    Raises:
        ProtocolError: standings that cannot be: of other generations, more than one exchange apart, members with and
            without the state, or a microbatch held twice.
    """
    for standing in standings:
        if (standing.attempt, standing.generation) != (record.attempt, record.number):
            raise ProtocolError(f"a member of generation {standing.generation} met one of {record.number}")
    holders = tuple(rank for rank, one in enumerate(standings) if one.has_state)
    if not holders:
        return EntryPlan((), (), 0, BEFORE_ALL, None, ())
    if len(holders) < len(standings):
        raise ProtocolError("a worker without the state entered a generation whose members have it")
    last = max(standings[rank].last for rank in holders)
    behind = tuple(rank for rank in holders if standings[rank].last != last)
    sources = [rank for rank in holders if standings[rank].last == last and standings[rank].result_bytes > 0]
    for rank in behind:
        if not _follows(last, standings[rank].last):
            raise ProtocolError(f"rank {rank} completed exchange {standings[rank].last} and missed more than {last}")
    if behind and not sources:
        raise ProtocolError(f"nobody has the result of exchange {last} any more, which rank {behind[0]} needs")
    owners, orphans = _share_out(record, standings, last)
    return EntryPlan(holders, behind, sources[0] if sources else 0, last, owners, orphans)


def bridge_owners(record: GenerationRecord) -> tuple[int, ...]:
    """Owners of the first step of a generation: where some join, the others compute it while these take in the rest."""
    holders = record.holders
    if not record.joiners:
        return record.owners
    return tuple(holders[index] for index in balanced_owners(len(record.owners), len(holders)))


def _follows(last: Key, before: Key) -> bool:
    """Whether `last` can be the next exchange after `before`; a step may have had any number of evaluations."""
    step, number = last
    return before == (step, number - 1) if number else before[0] == step - 1


def _share_out(
    record: GenerationRecord, standings: Sequence[Standing], last: Key
) -> tuple[tuple[int, tuple[int, ...]] | None, tuple[int, ...]]:
    """Owners of the interrupted step: those that hold microbatches keep them, the others go to heirs."""
    interrupted = last[0] + 1
    holding = {rank: one for rank, one in enumerate(standings) if one.working_on == interrupted and one.held}
    if not holding:
        return None, ()
    owners: list[int | None] = [None] * len(record.owners)
    for rank, standing in holding.items():
        for leaf in standing.held:
            if owners[leaf] is not None:
                raise ProtocolError(f"microbatch {leaf} of step {interrupted} is held by two workers")
            owners[leaf] = rank
    orphans = tuple(leaf for leaf, owner in enumerate(owners) if owner is None)
    return (interrupted, heirs(owners, record.world)), orphans
