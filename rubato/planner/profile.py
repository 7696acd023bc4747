"""What is known of a model before it is trained by many: its layers, and what a step on one worker takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own, in the order in which a forward pass comes by."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Of its parameters."""
    forward_s: float
    """Seconds a sample."""
    backward_s: float
    """Seconds a sample."""

    @property
    def parameters(self) -> int:
        """How many."""
        return sum(prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Profile:
    """Measured on one worker of the kind that is to train."""

    layers: tuple[Layer, ...]
    start_s: float = 0.0
    """Of a pass, whatever its samples."""
    update_s: float = 0.0
    """Of the optimizer, a parameter."""
    codec_s: dict[str, float] = field(default_factory=dict)
    """By compression method, seconds an element: both ways, measured on this kind of machine."""
    element_bytes: int = 4

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Rows and columns of what is compressed: matrices, and larger tensors as matrices."""
        shapes = [shape for layer in self.layers for shape in layer.shapes if len(shape) > 1]
        return [(shape[0], prod(shape[1:])) for shape in shapes]

    @property
    def compressed(self) -> int:
        """Elements of these."""
        return sum(rows * columns for rows, columns in self.matrices)

    def forward_s(self, samples: float) -> float:
        """A forward pass over so many samples."""
        return self.start_s + samples * sum(layer.forward_s for layer in self.layers)

    def backward_s(self, samples: float) -> float:
        """A backward pass over so many samples."""
        return self.start_s + samples * sum(layer.backward_s for layer in self.layers)

    def ready(self, samples: float, bucket_bytes: int) -> list[tuple[float, int]]:
        """When during a backward pass each bucket is complete, and its elements; the last layer's comes first."""
        buckets: list[tuple[float, int]] = []
        clock, waiting = self.start_s, 0
        for layer in reversed(self.layers):
            clock += samples * layer.backward_s
            waiting += layer.parameters
            if waiting * self.element_bytes >= bucket_bytes:
                buckets.append((clock, waiting))
                waiting = 0
        if waiting or not buckets:
            buckets.append((clock, waiting))
        return buckets
