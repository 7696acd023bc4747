"""Who computes which piece of a synchronous update, so that the slowest workers are not waited for. Pure.

An update is made of the gradients of its pieces, N = max(1, C - b) of them where C workers compute and b are backups:
1. Who is free gets the lowest piece that nobody has begun.
2. Where there is none, it gets one that a single worker computes: that of the slowest, as measured so far. At most b
   pieces are computed twice at a time.
3. The first of two counts, and the other is dropped. Who is late is free when it has come, for the update of that time.
4. When all N are there, their sum in the order of pieces makes the update.

So each sample counts once, and which worker was slow changes no bit. As published, the N first gradients of C = N + b
make an update, and the samples of the others are lost.

Cost: pieces are (N + b)/N as large as without backups, and up to b are computed in vain.
Source: Chen et al. 2016, arXiv:1604.00981 (backup workers); Dean and Ghemawat 2004 (MapReduce: the last tasks twice).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

RECENT = 0.3
"""The weight of the last piece in a worker's pace."""


class Dealer:
    """What is dealt to whom, update after update.

    Args:
        workers: who compute, by rank.
        backups: b.
    """

    def __init__(self, workers: Collection[int], backups: int) -> None:
        self._backups = backups
        self._free = set(workers)
        self._holding: dict[int, int | None] = {}
        """By worker that computes: its piece; None: of an update that was made without it."""
        self._left: list[int] = []
        """Pieces that nobody has begun."""
        self._missing: set[int] = set()
        self._pace: dict[int, float] = {}
        """Seconds a piece, by worker."""

    @property
    def is_complete(self) -> bool:
        """Whether all pieces of the update are there."""
        return not self._missing

    @property
    def free(self) -> list[int]:
        """Workers that compute nothing, by rank."""
        return sorted(self._free)

    def begin(self, pieces: Sequence[int]) -> None:
        """An update of these pieces is next; the one before is complete."""
        assert self.is_complete
        self._left, self._missing = list(pieces), set(pieces)
        self._holding = dict.fromkeys(self._holding)

    def deal(self) -> list[tuple[int, int]]:
        """(worker, piece): to begin now."""
        dealt: list[tuple[int, int]] = []
        for worker in self.free:
            piece = self._left.pop(0) if self._left else self._late()
            if piece is None:
                break
            self._free.remove(worker)
            self._holding[worker] = piece
            dealt.append((worker, piece))
        return dealt

    def done(self, worker: int, seconds: float) -> int | None:
        """A worker has computed its piece. Returns it; None: it is there already, or its update was made without it."""
        piece = self._holding.pop(worker)
        self._free.add(worker)
        self._pace[worker] = seconds + (1 - RECENT) * (self._pace.get(worker, seconds) - seconds)
        if piece is None or piece not in self._missing:
            return None
        self._missing.remove(piece)
        return piece

    def _late(self) -> int | None:
        """The piece to be computed a second time."""
        holders: dict[int, list[int]] = {}
        for worker, piece in self._holding.items():
            if piece is not None and piece in self._missing:
                holders.setdefault(piece, []).append(worker)
        alone = [piece for piece, found in holders.items() if len(found) == 1]
        if not alone or len(holders) - len(alone) >= self._backups:
            return None
        return max(alone, key=lambda piece: (self._pace.get(holders[piece][0], 0.0), -piece))
