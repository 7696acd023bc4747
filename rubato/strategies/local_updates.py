"""Workers train by themselves, and tell each other only now and then how far they came.

Every worker takes H optimizer steps of its own from weights t that all share; d = t - (its own weights). The mean of
all d is taken for a gradient of t by an outer optimizer, and all go on from its t. With H = 1, an outer learning rate
of 1 and no momentum that is the mean of the weights after each step.

Streaming: the vector is cut into F fragments, of which one is exchanged every H/F steps, in turn. Its exchange begins
`delay` steps before its outcome is used, and so hides behind them; of what a worker has done meanwhile to the fragment
it keeps the share `mix`.

All workers must name the same fragment at the same step: so which one is due follows from the step alone.
Sent by each, in a step's mean: 2n(P-1)/P / H bytes of an n bytes vector; at once: 1/F of 2n(P-1)/P.

A joiner needs t and what the outer optimizer keeps; it begins with an inner optimizer of its own. Who leaves or is lost
takes its d of the present round along.

Source: Stich 2019, arXiv:1805.09767 (local SGD); Douillard et al. 2023, arXiv:2311.08105 (DiLoCo); Douillard et al.
2025, arXiv:2501.18512 (streaming).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rubato.strategies.peers import Collectives
from rubato.strategies.sizes import cut
from rubato.strategies.sums import sum_over


@dataclass(frozen=True)
class Outer:
    """Stochastic gradient descent with momentum over the mean of all d."""

    lr: float = 0.7
    momentum: float = 0.9
    is_nesterov: bool = True

    def direction(self, mean: torch.Tensor, gathered: torch.Tensor | None) -> torch.Tensor:
        """Where to go, times lr.

        Args:    gathered: momentum so far, changed in place; None where there is none.
        """
        if gathered is None:
            return mean
        gathered.mul_(self.momentum).add_(mean)
        return mean + self.momentum * gathered if self.is_nesterov else gathered


@dataclass(frozen=True)
class Rounds:
    """When which fragment is exchanged.

    Raises:  ValueError: the numbers do not go together; says why.
    """

    sync_every: int
    """H: steps between two exchanges of the same fragment."""
    fragments: int = 1
    """F."""
    delay: int = 0
    """Steps between the beginning of an exchange and the use of its outcome."""
    mix: float = 0.0
    """The share of its own weights that a worker keeps, 0 to 1."""

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.sync_every < 1 or self.sync_every % self.fragments:
            raise ValueError(f"sync_every ({self.sync_every}) must be a multiple of fragments ({self.fragments})")
        if not 0 <= self.delay < self.every:
            raise ValueError(
                f"sync_delay ({self.delay}) must be less than the {self.every} steps between two exchanges"
            )
        if not 0 <= self.mix <= 1:
            raise ValueError(f"mix_alpha must lie in 0..1, got {self.mix}")

    @property
    def every(self) -> int:
        """Steps between two exchanges of any fragments."""
        return self.sync_every // self.fragments

    def begins_after(self, step: int) -> int | None:
        """The fragment whose exchange begins when step `step` (from 0) is done; None: none does."""
        return self._fragment(step + self.delay)

    def ends_after(self, step: int) -> int | None:
        """The fragment whose outcome is used when step `step` is done."""
        return self._fragment(step)

    def _fragment(self, step: int) -> int | None:
        return (step + 1) // self.every % self.fragments if (step + 1) % self.every == 0 else None


class Shared:
    """What all workers share: the weights of the last exchanges, and what the outer optimizer keeps.

    Shapes:  flat vectors (L,).
    """

    def __init__(self, weights_L: torch.Tensor, rounds: Rounds, outer: Outer) -> None:
        self.weights = weights_L.clone()
        self.momentum = torch.zeros_like(weights_L)
        self._rounds = rounds
        self._outer = outer

    def place(self, fragment: int) -> slice:
        """Where a fragment lies in the vector."""
        return slice(*cut(self.weights.numel(), self._rounds.fragments)[fragment])

    def distance(self, fragment: int, own_L: torch.Tensor) -> torch.Tensor:
        """d of a worker, in a fragment."""
        place = self.place(fragment)
        return self.weights[place] - own_L[place]

    def mean(self, comm: Collectives, distance: torch.Tensor) -> torch.Tensor:
        """Of all workers."""
        return sum_over(comm, distance).div_(comm.world)

    def take(self, fragment: int, mean: torch.Tensor, own_L: torch.Tensor) -> None:
        """Step the outer optimizer in a fragment, and change a worker's own weights to what it goes on with."""
        place, outer = self.place(fragment), self._outer
        self.weights[place] -= outer.lr * outer.direction(mean, self.momentum[place])
        own_L[place] = torch.lerp(self.weights[place], own_L[place], self._rounds.mix)
