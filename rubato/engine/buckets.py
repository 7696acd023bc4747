"""Which stretches of the flat vector are exchanged one after the other: gradients in the order of a backward pass.

A backward pass computes the last layers' gradients first, so the vector is cut from its end. What is not a gradient
(changes of buffers, touched flags) is known when the pass is over, and comes last.
Source of the idea: Li et al. 2020, "PyTorch Distributed", doi:10.14778/3415478.3415530.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

ALIGN = 16
"""Elements: 64 bytes of float32."""


@dataclass(frozen=True)
class Bucket:
    """Elements begin..end of the vector, and the parameters whose gradients lie there, all or in part."""

    begin: int
    end: int
    parameters: range


def cut(starts: Sequence[int], end: int, length: int, most: int) -> list[Bucket]:
    """The buckets in the order of the exchange.

    Args:
        starts: first element of each parameter, ascending, the first one 0.
        end: behind the last parameter.
        length: of the vector, the tail that is not gradients included.
        most: elements of a bucket, where a parameter does not have more of them than that: such a one is cut.
    """
    most = max(ALIGN, most // ALIGN * ALIGN)
    found: list[Bucket] = []
    stop = end
    for index, begin in reversed(list(enumerate(starts))):
        if index == 0 or stop - starts[index - 1] > most:
            for high in range(stop, begin, -most):
                low = max(begin, high - most)
                found.append(Bucket(low, high, range(bisect_right(starts, low) - 1, bisect_left(starts, high))))
            stop = begin
    return [*found, Bucket(end, length, range(0))]


def cut_tail(begin: int, flags: int, length: int, most: int) -> list[Bucket]:
    """The buckets of what is not gradients, where that is as large: to be exchanged behind all of these.

    Args:    flags: where the last one begins.
    """
    most = max(ALIGN, most // ALIGN * ALIGN)
    bounds = [*range(begin, flags, most), flags, length]
    return [Bucket(low, high, range(0)) for low, high in pairwise(bounds)]
