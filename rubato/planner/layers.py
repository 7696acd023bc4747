"""Fewer layers than a model has, where it has more than a profile holds. Pure.

When gradients of neighbours are ready is told by one time as well: a bucket of the exchange has many of them. A name is
still that of a module, so that layers are separated there as before: neighbours in one module become that module, and
neighbouring modules of one around them `blocks.0 to 2`, which is no module. None is of two that lie around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil, prod

from rubato.planner.profile import Layer


def merged(layers: Sequence[Layer], most: int) -> tuple[Layer, ...]:
    """At most so many layers that take, and have, the same together; as they are, where they are no more.

    Args:    layers: in the order of a forward pass.  most: 1 or more.
    """
    if len(layers) <= most:
        return tuple(layers)
    deepest = max(one.name.count(".") + 1 for one in layers)
    depth = next(depth for depth in range(deepest - 1, -1, -1) if len(_modules(layers, depth)) <= most)
    around = [_modules(module, depth + 1) for module in _modules(layers, depth)]
    # Of each module around them so many neighbours at a time that few enough are left.
    largest = max(len(modules) for modules in around)
    size = next(size for size in range(1, largest + 1) if sum(ceil(len(modules) / size) for modules in around) <= most)
    return tuple(_one(run, depth) for modules in around for run in _runs(modules, size))


def _modules(layers: Sequence[Layer], depth: int) -> list[list[Layer]]:
    """Neighbours whose names begin with the same so many parts."""
    return [list(some) for _, some in groupby(layers, key=lambda one: _module(one, depth))]


def _module(layer: Layer, depth: int) -> str:
    return ".".join(layer.name.split(".")[:depth])


def _runs(modules: Sequence[list[Layer]], size: int) -> Iterator[list[Layer]]:
    for start in range(0, len(modules), size):
        yield [layer for module in modules[start : start + size] for layer in module]


def _one(layers: Sequence[Layer], depth: int) -> Layer:
    """All of them as one. What is not compressed becomes one tensor."""
    first, last = layers[0], layers[-1]
    if len(layers) == 1:
        return first
    around = [_module(first, depth)] if depth else []
    ends = dict.fromkeys(_module(one, depth + 1).rpartition(".")[2] for one in (first, last))
    shapes = [shape for layer in layers for shape in layer.shapes]
    plain = sum(prod(shape) for shape in shapes if len(shape) < 2)
    return Layer(
        ".".join([*around, " to ".join(ends)]),
        (*(shape for shape in shapes if len(shape) > 1), *([(plain,)] if plain else [])),
        sum(layer.forward_s for layer in layers),
        sum(layer.backward_s for layer in layers),
        first.inputs,
        last.outputs,
        first.input_bytes,
        last.output_bytes,
    )
