"""Who has which layers, where some workers have those with few parameters, and others those with many.

Convolutional layers take most of the computation and hold few parameters, fully connected ones the reverse. So C
workers have the layers up to a cut, each with its own samples, and F workers those behind it; CONV worker i asks FC
worker i mod F. The parameters behind the cut, and their gradients, never travel where F = 1.

Per microbatch, b samples of each CONV worker, A elements of a sample at the cut, K at the end:
1. CONV: a = front(x), told to its FC worker.
2. FC: y = back(a), of each of its CONV workers, told to it.
3. CONV: the loss of y, from the labels, which stay here, and its gradient by y, told to the FC worker.
4. FC: backward through `back`. Each gets the gradient by its a.
5. CONV: backward through `front`.
Then the gradients of `front` are summed over the CONV workers, and those of `back` over the FC workers.

Sent by a CONV worker: (A + K) b e bytes a microbatch of e bytes an element, and 2n(C-1)/C of the n bytes of `front`.
Against sums of everything it pays where b A ceil(C/F) is far less than what `back` holds. `engine.separation` does it.

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; the messages are derived from its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Who computes what, by rank."""

    front: Sequence[int]
    """The CONV workers, at least one: C of them."""
    keepers: Sequence[int]
    """The FC workers: F of them. The first one leads the rounds of `engine.separation`."""

    @classmethod
    def led(cls, leader: int, others: Sequence[int], keepers: int) -> Roles:
        """As many keepers as are wanted, but no more than half of all, so that each is asked by one.

        Args:    others: all but the leader, at least one.
        """
        more = min(keepers, (1 + len(others)) // 2) - 1
        return cls(others[more:], (leader, *others[:more]))

    def asked_by(self, rank: int) -> list[int]:
        """Of an FC worker: its CONV workers."""
        return list(self.front[self.keepers.index(rank) :: len(self.keepers)])

    def asks(self, rank: int) -> int:
        """Of a CONV worker: its FC worker."""
        return self.keepers[self.front.index(rank) % len(self.keepers)]
