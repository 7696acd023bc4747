"""The outer optimizer of workers that train by themselves, and tell each other only now and then how far they came.

Every worker makes H updates of its own from weights t that all share; d = t - (its own weights). The mean of all d is
taken for a gradient of t by an outer optimizer, and all go on from its t. With H = 1, an outer learning rate of 1 and
no momentum that is the mean of the weights after each update. `engine.replicas` and `engine.streaming` have the rest.

Source: Stich 2019, arXiv:1805.09767 (local SGD); Douillard et al. 2023, arXiv:2311.08105 (DiLoCo).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
