"""What would fit where the memory of a worker is too small: a batch cut finer, in passes of fewer samples. Pure.

Zou et al. begin with the mini-batch (`lemmas.samples_for`). Here the global batch says what is learned, so what memory
bounds is the samples of a pass: with `reproducible: true` a microbatch, of which there may be as many as it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from rubato.planner.lemmas import samples_for
from rubato.planner.methods import Strategy
from rubato.planner.options import Option, held_bytes, pass_of
from rubato.planner.profile import Profile
from rubato.wire.batch import MAX_MICROBATCHES
from rubato.wire.spec import JobSpec
from rubato.wire.units import format_bytes


def cut_finer(profile: Profile, spec: JobSpec, strategy: Strategy, counts: Iterable[int]) -> JobSpec | None:
    """The spec with the fewest microbatches at which one of so many workers fits; None where that does not help."""
    found = (microbatches_for(profile, spec, strategy, workers) for workers in counts)
    fewest = min((count for count in found if count is not None), default=None)
    return None if fewest is None else _cut_into(fewest, spec)


def microbatches_for(profile: Profile, spec: JobSpec, strategy: Strategy, workers: int) -> int | None:
    """The fewest that make a worker fit into `resources_per_worker.memory`, of multiples of the spec's.

    So workers are as busy as before. More of them leave more partial sums, so that the bound is asked again.

    Returns: None where no number does, or a pass goes over all microbatches of a worker.
    """
    if not spec.reproducible:
        return None
    batch, base, updates = spec.batch.global_size, spec.num_microbatches, strategy.sync_every
    most, count = min(MAX_MICROBATCHES, batch // updates), base
    while count <= most:
        samples = _samples_for(profile, _cut_into(count, spec), strategy, workers)
        if samples < 1:
            return None
        needed = ceil(batch / updates / samples)
        if needed <= count:
            return count
        count = base * ceil(needed / base)
        while strategy.local != "none" and count <= most and batch % (count * updates):
            count += base  # its updates are of equal size
    return None


def too_large(profile: Profile, spec: JobSpec, strategy: Strategy, found: Sequence[Option]) -> str:
    """Why a strategy does not fit with any number of workers, and what would make it fit."""
    least = min(found, key=lambda option: option.memory_bytes)
    besides = "" if profile.activation_bytes else " and what its passes keep, which the profile does not tell"
    return (
        f"a worker would hold {format_bytes(least.memory_bytes)} at least, besides the program{besides}, and "
        f"resources_per_worker.memory is {format_bytes(spec.resources_per_worker.memory or 0)}: give it more"
        f"{_or_else(profile, spec, strategy, [option.workers for option in found], least.workers)}"
    )


def _or_else(profile: Profile, spec: JobSpec, strategy: Strategy, counts: Sequence[int], best: int) -> str:
    """What else would help: with one of so many workers, the best of which holds the least."""
    finer = cut_finer(profile, spec, strategy, counts)
    if finer is not None:
        return f", or cut the batch into {finer.num_microbatches} microbatches (batch.num_microbatches)"
    samples = _samples_for(profile, spec, strategy, best)
    if spec.reproducible or samples < 1:
        return ""
    return (
        f", or have it go over fewer samples at a time, {samples} at most and not {pass_of(spec, strategy, best)}: by "
        "more workers (workers.max), or a smaller batch (batch.global_size)"
    )


def _cut_into(count: int, spec: JobSpec) -> JobSpec:
    return replace(spec, batch=replace(spec.batch, num_microbatches=count))


def _samples_for(profile: Profile, spec: JobSpec, strategy: Strategy, workers: int) -> float:
    """The most of a pass that fit, whatever the spec has."""
    rest_bytes, sample_bytes = profile.activation_bytes or (0, 0)
    held = held_bytes(profile, spec, strategy, workers) + rest_bytes
    return samples_for(spec.resources_per_worker.memory or 0, held, sample_bytes)
