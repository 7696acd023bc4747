"""What lies where in the flat vector of a step, as far as compression treats it differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch

from rubato.strategies.peers import join, split


@dataclass(frozen=True)
class Piece:
    """The gradient of one parameter."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """The element behind it."""
        return self.start + self.numel

    @property
    def rows(self) -> int:
        """Of the matrix that it is taken for: one row for each output of a layer."""
        return self.shape[0]


@dataclass(frozen=True)
class Layout:
    """Which pieces of a vector (L,) are compressed. All else (biases, norms, changes of buffers, flags) goes dense."""

    length: int
    pieces: tuple[Piece, ...]
    """In order; matrices and larger tensors."""
    others: tuple[Piece, ...]
    """Of the other parameters."""

    @cached_property
    def numel(self) -> int:
        """Elements that are compressed, D."""
        return sum(piece.numel for piece in self.pieces)

    @cached_property
    def dense(self) -> list[tuple[int, int]]:
        """The stretches between the pieces."""
        cuts = [0, *(edge for piece in self.pieces for edge in (piece.start, piece.stop)), self.length]
        return [(low, high) for low, high in zip(cuts[::2], cuts[1::2], strict=True) if low < high]

    @property
    def parameters(self) -> tuple[Piece, ...]:
        """All of them: first those that are compressed."""
        return (*self.pieces, *self.others)

    @property
    def table(self) -> list[list[Any]]:
        """Name, first element and shape of each parameter, as a checkpoint tells them."""
        return [[piece.name, piece.start, list(piece.shape)] for piece in self.parameters]

    @property
    def dense_numel(self) -> int:
        """Elements that go dense."""
        return self.length - self.numel

    @cached_property
    def others_numel(self) -> int:
        """Elements of the parameters that go dense."""
        return sum(piece.numel for piece in self.others)

    def take(self, vector_L: torch.Tensor) -> torch.Tensor:
        """What is compressed, one piece behind the other (D,): a copy."""
        return join([vector_L[piece.start : piece.stop] for piece in self.pieces], vector_L)

    def take_dense(self, vector_L: torch.Tensor) -> torch.Tensor:
        """What goes dense: a copy."""
        return join([vector_L[low:high] for low, high in self.dense], vector_L)

    def take_others(self, vector_L: torch.Tensor) -> torch.Tensor:
        """Of what goes dense the parameters, one piece behind the other: a copy."""
        return join([vector_L[piece.start : piece.stop] for piece in self.others], vector_L)

    def put_others(self, vector_L: torch.Tensor, parts: torch.Tensor) -> None:
        """The other way round."""
        for piece, part in zip(self.others, split(parts, [piece.numel for piece in self.others]), strict=True):
            vector_L[piece.start : piece.stop] = part

    def join(self, compressed_D: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """A whole vector (L,) of both."""
        vector = compressed_D.new_empty(self.length)
        for piece, part in zip(self.pieces, split(compressed_D, [one.numel for one in self.pieces]), strict=True):
            vector[piece.start : piece.stop] = part
        for (low, high), part in zip(self.dense, split(dense, [high - low for low, high in self.dense]), strict=True):
            vector[low:high] = part
        return vector


def layout_of(length: int, parameters: Sequence[tuple[str, int, tuple[int, ...]]]) -> Layout:
    """The layout of a model.

    Args:
        length: of the vector.
        parameters: name, first element and shape of each.
    """
    pieces = [Piece(*one) for one in parameters if prod(one[2])]
    return Layout(
        length,
        tuple(piece for piece in pieces if len(piece.shape) > 1),
        tuple(piece for piece in pieces if len(piece.shape) <= 1),
    )


def layout_of_table(table: Iterable[Sequence[Any]]) -> Layout:
    """Where the parameters of a checkpoint were; what else its vector had does not count."""
    return layout_of(0, [(name, start, tuple(shape)) for name, start, shape in table])


def end_to_end(pieces: Iterable[Piece]) -> list[Piece]:
    """Where they are, when all stand one behind the other."""
    found, at = [], 0
    for piece in pieces:
        found.append(replace(piece, start=at))
        at += piece.numel
    return found


def carry_over(saved: torch.Tensor, before: Iterable[Piece], onto: torch.Tensor, now: Iterable[Piece]) -> float:
    """Copy each piece to where another vector has one of its name and shape.

    Args:    saved: a vector with pieces `before`.  onto: one with pieces `now`, overwritten there.
    Returns: the norm of those that have no place there.
    """
    places = {(piece.name, piece.shape): piece for piece in now}
    left = [saved[:0]]
    for piece in before:
        part, place = saved[piece.start : piece.stop], places.get((piece.name, piece.shape))
        if place is None:
            left.append(part)
        else:
            onto[place.start : place.stop] = part
    return float(torch.linalg.vector_norm(torch.cat(left)))
