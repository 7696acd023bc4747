"""Which global batch learns the most in a second, where it is known how noisy gradients are. Pure.

A larger batch keeps more workers busy, and each of its samples teaches less: goodput is samples a second times what a
sample is worth. Source: Qiao et al. 2021, Pollux (OSDI); McCandlish et al. 2018, arXiv:1812.06162.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rubato.errors import check_rules
from rubato.strategies.batch_rules import efficiency
from rubato.wire.batch import MAX_GLOBAL_SIZE

FACTORS = (1, 2, 4, 8, 16)
"""Times the spec's batch, up and down."""
ABOUT_RIGHT = 1.1
"""So many times the progress must be what another batch is named for."""
MAX_NOISE = 1e15


@dataclass(frozen=True)
class Batch:
    """A global batch, with the number of workers that pays for it."""

    global_size: int
    workers: int
    samples_per_s: float
    worth: float
    """Of a sample, against one in the spec's batch: by the samples of an update."""
    progress: float
    """What is learned in a second, against the spec's batch."""


def check_noise(noise_scale: float) -> None:
    """Raises: UserError: it is no noise scale."""
    check_rules((0 < noise_scale <= MAX_NOISE, "noise_scale", f"must lie above 0 and be at most {MAX_NOISE:g}"))


def compare(
    base: int, pieces: int, noise_scale: float, speed: Callable[[int], tuple[int, float, float]]
) -> tuple[Batch, ...]:
    """The spec's batch, and others as a spec may have them; the smallest first.

    Args:
        base: the spec's batch.
        pieces: of equal size that a batch has.
        noise_scale: in samples.
        speed: of a batch, the workers that pay, their samples a second, and the samples of one update.
    """
    smaller = {base // factor for factor in FACTORS if base % (pieces * factor) == 0}
    larger = {base * factor for factor in FACTORS if base * factor <= MAX_GLOBAL_SIZE}
    *_, of_base = speed(base)
    found = []
    for size in sorted(larger | smaller):
        workers, samples_per_s, of_update = speed(size)
        worth = efficiency(of_update, of_base, noise_scale)
        found.append(Batch(size, workers, samples_per_s, worth, samples_per_s * worth))
    progress = next(one.progress for one in found if one.global_size == base)
    return tuple(replace(one, progress=one.progress / progress) for one in found)


def recommended(batches: Sequence[Batch]) -> Batch:
    """The smallest that learns about as fast as any."""
    most = max(one.progress for one in batches)
    return next(one for one in batches if one.progress * ABOUT_RIGHT >= most)


def sentences(batches: Sequence[Batch], base: int, noise_scale: float, *, scales_rates: bool = True) -> Iterator[str]:
    """What to make of it.

    Args:    scales_rates: whether the spec may scale learning rates with the batch.
    """
    chosen, noise = recommended(batches), f"At a noise scale of {noise_scale:.3g} samples a batch of"
    if chosen.global_size == base:
        yield f"{noise} {base} is about right."
    elif chosen.global_size < base:
        yield f"{noise} {chosen.global_size} learns about as fast as one of {base}, from fewer samples."
    else:
        yield (
            f"{noise} {chosen.global_size} with {chosen.workers} workers would learn {chosen.progress:.2g} times as "
            f"fast as one of {base}, though a sample is worth {chosen.worth:.2g} as much; "
            f"{'lr_scaling' if scales_rates else 'a larger learning rate'} goes with it. Its microbatches are "
            f"{chosen.global_size // base} times as large, and what their activations take is not known: measure "
            "their memory, or raise num_microbatches with the batch."
        )
