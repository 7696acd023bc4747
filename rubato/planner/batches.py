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
from rubato.wire.units import format_bytes, plural, three_digits

FACTORS = (1, 2, 4, 8, 16)
"""Times the spec's batch, up and down."""
ABOUT_RIGHT = 1.1
"""So many times the progress must be what another batch is named for."""
NOTICED = 1.05
"""So many times the progress is more than about as much."""
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
    num_microbatches: int
    """Those of the spec, or so many more that a worker can hold a pass."""
    memory_bytes: int
    """Of one worker, as `Option` has it; 0: the profile does not say what a pass keeps."""


@dataclass(frozen=True)
class Speed:
    """How a batch is trained fastest."""

    workers: int
    """That pay for it."""
    num_microbatches: int
    samples_per_s: float
    of_update: float
    """Samples of one update."""
    memory_bytes: int
    """As `Batch` has it."""


def check_noise(noise_scale: float) -> None:
    """Raises: UserError: it is no noise scale."""
    check_rules((0 < noise_scale <= MAX_NOISE, "noise_scale", f"must lie above 0 and be at most {MAX_NOISE:g}"))


def compare(
    base: int, pieces: int, noise_scale: float, speed: Callable[[int], Speed | None], *, are_equal: bool
) -> tuple[Batch, ...]:
    """The spec's batch, and others as a spec may have them, as far as they fit; the smallest first.

    Args:
        base: the spec's batch.
        pieces: that a batch has, each of a sample or more.
        noise_scale: in samples.
        speed: of a batch; None: no worker can hold its passes. The spec's own is one that fits.
        are_equal: whether pieces have to be of equal size.
    """
    whole = pieces if are_equal else 1
    smaller = {base // factor for factor in FACTORS if base % (whole * factor) == 0 and base // factor >= pieces}
    speeds = {size: told for size in sorted({*_larger(base), *smaller}) if (told := speed(size)) is not None}
    of_base, found = speeds[base].of_update, []
    for size, one in speeds.items():
        worth = efficiency(one.of_update, of_base, noise_scale)
        progress = one.samples_per_s * worth
        found.append(
            Batch(size, one.workers, one.samples_per_s, worth, progress, one.num_microbatches, one.memory_bytes)
        )
    of_spec = next(one.progress for one in found if one.global_size == base)
    return tuple(replace(one, progress=one.progress / of_spec) for one in found)


def _larger(base: int) -> list[int]:
    """From the spec's batch on, those that a spec may have."""
    return [base * factor for factor in FACTORS if base * factor <= MAX_GLOBAL_SIZE]


def recommended(batches: Sequence[Batch]) -> Batch:
    """The smallest that learns about as fast as any."""
    most = max(one.progress for one in batches)
    return next(one for one in batches if one.progress * ABOUT_RIGHT >= most)


def sentences(batches: Sequence[Batch], base: int, noise_scale: float, *, scales_rates: bool = True) -> Iterator[str]:
    """What to make of it.

    Args:    scales_rates: whether the spec may scale learning rates with the batch.
    """
    chosen, noise = recommended(batches), f"At a noise scale of {three_digits(noise_scale)} samples a batch of"
    if chosen.global_size == base:
        yield f"{noise} {base} is about right."
    elif chosen.global_size < base:
        times = "about" if chosen.progress < NOTICED else f"{chosen.progress:.2g} times"
        yield f"{noise} {chosen.global_size} learns {times} as fast as one of {base}, from fewer samples."
    else:
        yield (
            f"{noise} {chosen.global_size} with {plural(chosen.workers, 'worker')} would learn {chosen.progress:.2g} "
            f"times as fast as one of {base}, though a sample is worth {chosen.worth:.2g} as much; "
            f"{'lr_scaling' if scales_rates else 'a larger learning rate'} goes with it. "
            f"{_of_passes(chosen, next(one for one in batches if one.global_size == base))}"
        )
    compared = {one.global_size for one in batches}
    too_large = next((size for size in _larger(base) if size not in compared), None)
    if too_large is not None:
        yield f"From {too_large} samples on batches do not fit into resources_per_worker.memory, whoever shares them."


def _of_passes(chosen: Batch, own: Batch) -> str:
    """What they are, and take, against those of the spec's batch, which is smaller."""
    times = chosen.global_size // own.global_size
    held = f"a worker would hold {format_bytes(chosen.memory_bytes)} besides the program"
    if chosen.num_microbatches > own.num_microbatches:
        return (
            f"In {chosen.num_microbatches} microbatches (batch.num_microbatches) it fits into "
            f"resources_per_worker.memory: {held}."
        )
    if chosen.memory_bytes:
        return f"Its microbatches are {times} times as large: {held}."
    return (
        f"Its microbatches are {times} times as large, and what their activations take is not known: measure their "
        "memory, or raise num_microbatches with the batch."
    )
