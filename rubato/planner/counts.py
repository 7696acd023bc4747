"""Which numbers of workers are looked at, where there are more than a plan needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rubato.wire.batch import next_useful
from rubato.wire.spec import JobSpec

MOST = 32
"""Numbers of workers that are looked at for a strategy: a step of a count between two of them is no surprise."""


def useful_counts(spec: JobSpec) -> list[int]:
    """Numbers of workers between the bounds of the spec whose largest share of a step is smaller than with one less.

    Where one leads, it deals out samples or updates, and not microbatches: any number is.
    """
    if spec.local_updates.is_led:
        return list(range(spec.workers.min, spec.workers.upper + 1))
    found: list[int] = []
    more: int | None = spec.workers.min
    while more is not None:
        found.append(more)
        more = next_useful(spec.num_microbatches, more, spec.workers.upper)
    return found


def some_of(counts: Sequence[int], most: int = MOST) -> list[int]:
    """At most so many of them, from the first to the last, each by about the same factor larger than the one before.

    Args:    counts: ascending, of 1 or more.
    """
    if len(counts) <= most:
        return list(counts)
    low, high = counts[0], counts[-1]
    targets = [low * (high / low) ** (place / (most - 1)) for place in range(most)]
    return sorted({min(counts, key=lambda count: abs(count - target)) for target in targets})


def doubled(most: int) -> list[int]:
    """1, 2, 4 ... below `most`, and that; nothing where it is 0."""
    return sorted({*(1 << power for power in range(most.bit_length())), most}) if most else []
