"""Do the members hold the same state? Digests in the step's headers say so, before the step counts.

    every so many steps, at the start and after a recovery   all say the digest of the whole state; a minority leaves
    in the first step with joiners                           each member says the digest of a share that another one
                                                             sent, and the joiners, which have the time, look at all of
                                                             what they got: a wrong bit is not taken over unseen
    in the step after a checkpoint was copied                all say the digest of the whole state: until then it is not
                                                             known whether the parts that each wrote are of one

After any other planned change the members hold what they held before it.

Equal states do not mean equal work: a joiner may lack what nobody registered (the scale of a GradScaler), a processor
may compute wrongly. So a joiner, which has no microbatch of its own in its first step, computes one of another's, and
both say the digest of its gradient: the audit. Every so many steps all compute a same one, besides their own.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from rubato.engine.header import Header, minority
from rubato.engine.state import TrainingState
from rubato.errors import GenerationLost, RubatoError
from rubato.wire.worker import GenerationRecord

EVERY = 1000
"""Steps between comparisons of the whole state."""


STATES, GRADIENTS = "states", "gradients of one same microbatch"
"""What may differ."""


class Disagreement(RubatoError):
    """What this worker has is not what the others have. `digests` are what they said."""

    def __init__(self, what: str, digests: Sequence[int | None]) -> None:
        self.what = what
        self.digests = tuple(f"{(digest or 0) & (2**64 - 1):016x}" for digest in digests)
        super().__init__(f"the {what} differ: {', '.join(self.digests)}")


class Audit(enum.Enum):
    """What a worker does in a step to compare the gradient of its lowest microbatch."""

    NONE = enum.auto()
    ALL = enum.auto()
    """All compute it, besides their own."""
    JOINS = enum.auto()
    """This worker has none of its own yet, and computes it."""
    MEETS_JOINERS = enum.auto()
    """Its owner says what a joiner should find."""


def audit_of(record: GenerationRecord, rank: int, step: int, is_first: bool, is_repaired: bool) -> Audit:
    """What a worker does in this step.

    Args:
        is_first: whether it is the generation's first one.
        is_repaired: whether the step has owners of its own: it was interrupted, or others join in it.
    """
    if is_first and record.joiners:
        return Audit.JOINS if rank in record.joiners else Audit.MEETS_JOINERS
    is_due = record.world > 1 and step % EVERY == EVERY // 2
    return Audit.ALL if is_due and not is_repaired else Audit.NONE


@dataclass
class Trust:
    """Up to where the members are known to hold the same state."""

    agreed: int = 0
    """So many steps were committed then."""
    is_due: bool = False
    """A checkpoint was copied since."""


@dataclass(frozen=True)
class Agreement:
    """What is compared in one step of a generation.

    Args:    is_first: whether it is the generation's first reduction.  trust: kept up to date.
    """

    record: GenerationRecord
    rank: int
    step: int
    is_first: bool
    trust: Trust

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that take part for the first time."""
        return self.record.joiners if self.is_first else ()

    def digest(self, state: TrainingState) -> int | None:
        """What this worker says in its header."""
        if self.joined:
            return None if self.rank in self.joined else self._share(state, self.rank)
        begins = self.is_first and not self.record.follows
        compares = self.record.world > 1 and (begins or self.trust.is_due or self.step % EVERY == 0)
        return state.quick_digest() if compares else None

    def expected(self, state: TrainingState) -> tuple[int, ...]:
        """What a joiner expects of the others; nothing for anybody else."""
        return tuple(self._share(state, rank) for rank in self.record.holders) if self.rank in self.joined else ()

    def _share(self, state: TrainingState, holder: int) -> int:
        """Digest of the share that the member behind this one sent: what it holds itself it cannot vouch for."""
        holders = self.record.holders
        return state.quick_digest((holders.index(holder) + 1) % len(holders), len(holders))

    def check(self, headers: Sequence[Header], expected: tuple[int, ...]) -> None:
        """Look at what all have said.

        Raises:
            Disagreement: this worker is not among a majority.  GenerationLost: others are not; they leave.
        """
        digests, audits = [header.digest for header in headers], [header.audit for header in headers]
        if self.joined:
            if self.rank not in self.joined:
                return
            said = tuple(digests[rank] for rank in self.record.holders)
            if said != expected:
                raise Disagreement(STATES, said)
            known = {audits[rank] for rank in self.record.holders}.difference([None])
            if known and audits[self.rank] not in {None, *known}:
                raise Disagreement(GRADIENTS, [audit for audit in audits if audit is not None])
            return
        for what, told in ((STATES, digests), (GRADIENTS, audits)):
            odd = minority(told)
            if self.rank in odd:
                raise Disagreement(what, told)
            if odd:
                raise GenerationLost(f"the {what} of ranks {sorted(odd)} differ from the majority's")
        # A joiner has no checkpoint to ask for, and says nothing where only the others do.
        if self.record.world == 1 or sum(digest is not None for digest in digests) > 1:
            self.trust.agreed, self.trust.is_due = self.step, False
