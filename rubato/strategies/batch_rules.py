"""What a change of the global batch does to the learning rate, and how large a batch is worth it. Pure.

Names: B0 the batch for which the learning rate was chosen, B the batch of now.

The *gradient noise scale* tr(S) / |G|^2 says at which batch the noise of a gradient is as large as the gradient, S
being the covariance of a sample's gradient and G their mean. Far below it twice the batch is worth twice the samples;
far above it is worth nothing. It is estimated from the microbatches of a step: their gradients differ by the noise of b
samples, their mean has that of B.

Source: Goyal et al. 2017, arXiv:1706.02677 (linear, warm-up); Krizhevsky 2014, arXiv:1404.5997 (square root); Johnson
et al. 2020, arXiv:2007.05105 (AdaScale); McCandlish et al. 2018, arXiv:1812.06162 (noise scale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from rubato.wire.batch import LrRule

SMOOTHING = 0.999
"""Of the noise, for each time as many samples as B0."""


@dataclass(frozen=True)
class Noise:
    """Smoothed estimates over the steps so far."""

    gradient_sqr: float = 0.0
    """|G|^2. The estimate has no bias, so that it also falls below 0 where noise hides the gradient."""
    variance: float = 0.0
    """tr(S), of one sample."""
    weight: float = 0.0
    """Of all steps; below 1 while few have been seen."""

    @property
    def scale(self) -> float | None:
        """In samples; None: nothing has been seen, or no gradient for all the noise."""
        return max(0.0, self.variance) / self.gradient_sqr if self.gradient_sqr > 0 else None

    def after(self, small_sqrs: Sequence[float], big_sqr: float, small: float, big: float, *, keep: float) -> Noise:
        """With one more step.

        Args:
            small_sqrs: |g|^2 of the gradient of each full microbatch.
            big_sqr: |g|^2 of their mean.
            small: samples of a microbatch, b; where they differ, their harmonic mean.
            big: samples of all these, B.
            keep: how much of the former estimates stays, 0 to 1.
        """
        if big < 1.5 * small or not small_sqrs:
            return self  # one microbatch tells nothing of the noise; of two, B is 2b at least
        small_sqr = sum(small_sqrs) / len(small_sqrs)
        gradient_sqr = (big * big_sqr - small * small_sqr) / (big - small)
        variance = (small_sqr - big_sqr) / (1 / small - 1 / big)
        weight = keep * self.weight + (1 - keep)
        return Noise(
            _blend(self.gradient_sqr, gradient_sqr, keep * self.weight / weight),
            _blend(self.variance, variance, keep * self.weight / weight),
            weight,
        )


def keep_of(big: float, base: float, smoothing: float = SMOOTHING) -> float:
    """How much of the estimates stays over a step of `big` samples: by samples the same, whatever the batch is."""
    return float(smoothing ** (big / base))


def gain(rule: LrRule, batch: float, base: float, noise: Noise = Noise()) -> float:
    """What the learning rate is multiplied by, at a batch B against B0.

    Of `adascale`: between 1 (all signal) and B/B0 (all noise); 1 while the noise is not known.
    """
    scale = batch / base
    match rule:
        case "none":
            return 1.0
        case "linear":
            return scale
        case "sqrt":
            return sqrt(scale)
        case "adascale":
            signal, at_base = max(0.0, noise.gradient_sqr), max(0.0, noise.variance) / base
            return (at_base + signal) / (at_base / scale + signal) if at_base + signal > 0 else 1.0


def warmed(before: float, after: float, steps_since: int, steps: int) -> float:
    """The gain on its way after a change of the batch: straight from the one to the other in so many steps."""
    if steps <= 0 or steps_since >= steps:
        return after
    return _blend(before, after, 1 - steps_since / steps)


def efficiency(batch: float, base: float, noise_scale: float) -> float:
    """What a sample is worth at a batch B, against one at B0."""
    return (noise_scale + base) / (noise_scale + batch)


def _blend(first: float, second: float, share: float) -> float:
    return share * first + (1 - share) * second
