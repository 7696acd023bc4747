"""Do the members hold the same state? Digests in the step's headers say so, before the step counts.

    every so many steps, at the start and after a recovery   all say the digest of the whole state; a minority leaves
    in the second step with joiners, the first one           each member says the digest of a share that another one
    that they compute for                                    sent, and the joiners one over all that they got: a wrong
                                                             bit is not taken over unseen
    in the step after a checkpoint was copied                all say the digest of the whole state: until then it is not
                                                             known whether the parts that each wrote are of one

Where `run.stop` leaves no such step, they say so as they tell each other that.

After any other planned change the members hold what they held before it. All these digests are of the state at the
step's start, so a thread may compute them while the microbatches are.

Equal states do not mean equal work: a joiner may lack what nobody registered (the scale of a GradScaler), a processor
may compute wrongly. So a joiner, which has no microbatch of its own in its first step, computes one of another's, and
both say the digest of its gradient: the audit. Every so many steps all compute a same one, besides their own.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rubato.engine.header import Header, minority
from rubato.errors import GenerationLost, RubatoError
from rubato.wire.worker import GenerationRecord

EVERY = 1000
"""Steps between comparisons of the whole state."""


STATES, GRADIENTS = "states", "gradients of one same microbatch"
"""What may differ."""


class Disagreement(RubatoError):
    """What this worker has is not what the others have. `digests` are what they said."""

    def __init__(self, what: str, digests: Sequence[int | None]) -> None:
        self.what, self.digests = what, _in_words(digests)
        super().__init__(f"the {what} differ: {', '.join(self.digests)}")


class OthersDiffer(GenerationLost):
    """What these ranks have is not what the majority has, which this worker belongs to."""

    def __init__(self, what: str, digests: Sequence[int | None], ranks: Collection[int]) -> None:
        self.what, self.digests, self.ranks = what, _in_words(digests), tuple(sorted(ranks))
        super().__init__(f"the {what} of ranks {list(self.ranks)} differ from those of the others")


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

    Args:
        reduced: steps that the generation has reduced before.
        is_last: whether it is the job's last step.
        trust: kept up to date.
        are_alike: whether the members' states are to be the same.
        judges_at_once: whether a joiner's state is compared in its first step, as they differ behind it.
    """

    record: GenerationRecord
    rank: int
    step: int
    reduced: int
    is_last: bool
    trust: Trust
    are_alike: bool = True
    judges_at_once: bool = False

    @property
    def meets_joiners(self) -> bool:
        """Whether others take part for the first time: they have no microbatch yet."""
        return bool(self.record.joiners) and self.reduced == 0

    @property
    def awaits_judgement(self) -> bool:
        """Whether it is known only after the next step that the joiners hold what the others do."""
        return self.meets_joiners and not self.is_last and not self.judges_at_once

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(part, parts): shares of the state whose digests this worker must know."""
        if not self.are_alike:
            return ()
        if self._judges:
            holders = self.record.holders
            # What a member holds itself it cannot vouch for: the share that the one behind it sent.
            shares = [((holders.index(rank) + 1) % len(holders), len(holders)) for rank in holders]
            return tuple(shares) if self.rank in self.record.joiners else (shares[holders.index(self.rank)],)
        begins = self.reduced == 0 and not self.record.follows
        compares = self.record.world > 1 and (begins or self.trust.is_due or self.step % EVERY == 0)
        return ((0, 1),) if compares and not self.meets_joiners else ()

    @property
    def _judges(self) -> bool:
        """Whether the joiners' state is compared with what the others say of theirs."""
        due = 0 if self.is_last or self.judges_at_once else 1
        return self.are_alike and bool(self.record.joiners) and self.reduced == due

    def digest(self, found: Sequence[int]) -> int | None:
        """What this worker says in its header.

        Args:    found: the digests of `parts`.
        """
        if self._judges and self.rank in self.record.joiners:
            return _of_all(found)
        return found[0] if found else None

    def check(self, headers: Sequence[Header]) -> None:
        """Look at what all have said.

        Raises:
            Disagreement: this worker is not among a majority.  OthersDiffer: others are not; they leave.
        """
        digests, audits = [header.digest for header in headers], [header.audit for header in headers]
        holders, joiners = self.record.holders, self.record.joiners
        self.compare(digests)
        if self.meets_joiners:
            known = {audits[rank] for rank in holders}.difference([None])
            if known and self.rank in joiners and audits[self.rank] not in {None, *known}:
                raise Disagreement(GRADIENTS, [audit for audit in audits if audit is not None])
            return
        self._part(GRADIENTS, minority(audits), audits)
        # A joiner has no checkpoint to ask for, and says nothing where only the others do.
        if self.record.world == 1 or (not self._judges and sum(digest is not None for digest in digests) > 1):
            self.trust.agreed, self.trust.is_due = self.step, False

    def compare(self, digests: Sequence[int | None]) -> None:
        """Look at what all have said of their state, by rank.

        Raises:  as `check`.
        """
        if not self._judges:
            self._part(STATES, minority(digests), digests)
            return
        said = [digests[rank] for rank in self.record.holders]
        odd = {rank for rank in self.record.joiners if digests[rank] != _of_all(said)}
        self._part(STATES, odd, [*said, *(digests[rank] for rank in self.record.joiners)])

    def _part(self, what: str, odd: Collection[int], told: Sequence[int | None]) -> None:
        if self.rank in odd:
            raise Disagreement(what, told)
        if odd:
            raise OthersDiffer(what, told, odd)


def _of_all(digests: Sequence[int | None]) -> int:
    """One digest of several."""
    text = ",".join(map(str, digests)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _in_words(digests: Sequence[int | None]) -> tuple[str, ...]:
    return tuple(f"{(digest or 0) & (2**64 - 1):016x}" for digest in digests)
