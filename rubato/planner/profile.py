"""What is known of a model before it is trained by many: its layers, and what a step on one worker takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from rubato.errors import check_rules
from rubato.wire.spec import JobSpec

MAX_LAYERS = 2_000
MAX_SIDE, MAX_SIDES = 2**31, 16
MAX_ELEMENTS = 2**40
MAX_BYTES = 2**60
MAX_ELEMENT_BYTES = 16
LEAST_S, MAX_S = 1e-15, 1e6
MAX_TENSORS = 10_000
MAX_SPREAD = 10.0


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
    inputs: int = 0
    """Elements of a sample that come in; 0: not measured."""
    outputs: int = 0
    """And that go out."""
    input_bytes: int = 4
    """Of an element that comes in."""
    output_bytes: int = 4
    """And of one that goes out."""

    def __post_init__(self) -> None:
        sides = [side for shape in self.shapes for side in shape]
        times = self.forward_s, self.backward_s
        check_rules(
            (all(0 <= one <= MAX_S for one in times), "forward_s", f"times must lie in 0..{MAX_S:g}, got {times}"),
            (all(1 <= side <= MAX_SIDE for side in sides), "shapes", f"sides must lie in 1..{MAX_SIDE}"),
            (0 <= self.inputs <= MAX_ELEMENTS, "inputs", "must lie in 0..2**40"),
            (0 <= self.outputs <= MAX_ELEMENTS, "outputs", "must lie in 0..2**40"),
            (1 <= self.input_bytes <= MAX_ELEMENT_BYTES, "input_bytes", f"must lie in 1..{MAX_ELEMENT_BYTES}"),
            (1 <= self.output_bytes <= MAX_ELEMENT_BYTES, "output_bytes", f"must lie in 1..{MAX_ELEMENT_BYTES}"),
            (all(len(shape) <= MAX_SIDES for shape in self.shapes), "shapes", f"must have at most {MAX_SIDES} sides"),
            (all(prod(shape) <= MAX_ELEMENTS for shape in self.shapes), "shapes", "must hold 2**40 elements at most"),
        )

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
    merge_s: dict[str, float] = field(default_factory=dict)
    """By compression method, seconds an element for each list of another worker that is merged."""
    codec_settings: dict[str, float] = field(default_factory=dict)
    """Of the methods, what these times depend on: density, rank, rows and columns."""
    modules: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By name of a module with layers in it, elements of a sample that go in and come out; 0: not one tensor."""
    module_bytes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By name of such a module, bytes of an element that goes in and of one that comes out; 4, where it has none."""
    spread: float = 0.0
    """cv, the standard deviation of the times of passes over their mean."""
    element_bytes: int = 4
    """Of the vector in which the engine exchanges gradients."""
    state_bytes: int = 0
    """Of parameters, buffers and optimizer state; 0: not measured."""
    averaged_bytes: int = 0
    """Of these as they travel when they are averaged: in the type of the engine's vector, of 32 bits at least; 0: not
    measured, they are taken to travel as they are."""
    activation_bytes: tuple[int, ...] = ()
    """What a pass keeps for its way back: whatever its samples, and for each of them; empty: not measured."""
    device: str = "cpu"
    """What it was measured on: `cpu` or `cuda`."""
    program: str = ""
    """What was measured, as `program_of` names it; empty: not known."""
    config: dict[str, Any] | None = None
    """Of the spec that it was measured with; None: not known."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the program's own files, as `ProgramCode` names them; a recipe has none."""

    def __post_init__(self) -> None:
        times = self.start_s, self.update_s, *self.codec_s.values(), *self.merge_s.values()
        tensors = sum(len(layer.shapes) for layer in self.layers)
        widths, types = self.modules.values(), self.module_bytes.values()
        check_rules(
            (0 < len(self.layers) <= MAX_LAYERS, "layers", f"must be 1 to {MAX_LAYERS}, got {len(self.layers)}"),
            (all(0 <= one <= MAX_S for one in times), "start_s", f"times must lie in 0..{MAX_S:g}"),
            (
                1 <= self.element_bytes <= MAX_ELEMENT_BYTES,
                "element_bytes",
                f"must lie in 1..{MAX_ELEMENT_BYTES}, got {self.element_bytes}",
            ),
            (0 <= self.state_bytes <= MAX_BYTES, "state_bytes", f"must lie in 0..2**60, got {self.state_bytes}"),
            (
                0 <= self.averaged_bytes <= MAX_BYTES,
                "averaged_bytes",
                f"must lie in 0..2**60, got {self.averaged_bytes}",
            ),
            (
                len(self.activation_bytes) in (0, 2) and all(0 <= one <= MAX_BYTES for one in self.activation_bytes),
                "activation_bytes",
                f"must be those of a pass and those of a sample, 0..2**60, or none, got {self.activation_bytes}",
            ),
            (
                self.start_s + sum(layer.forward_s + layer.backward_s for layer in self.layers) > LEAST_S,
                "layers",
                "take no time at all: this was not measured",
            ),
            (any(layer.shapes for layer in self.layers), "layers", "have no parameters"),
            (
                tensors <= MAX_TENSORS,
                "layers",
                f"must have at most {MAX_TENSORS} tensors, got {tensors}: profile the program with fewer layers",
            ),
            (0 <= self.spread <= MAX_SPREAD, "spread", f"must lie in 0..{MAX_SPREAD:g}, got {self.spread}"),
            (
                len(widths) <= MAX_TENSORS
                and all(len(one) == 2 and all(0 <= width <= MAX_ELEMENTS for width in one) for one in widths),
                "modules",
                f"must be {MAX_TENSORS} at most, each with what goes in and what comes out, 0..2**40",
            ),
            (
                len(types) <= MAX_TENSORS
                and all(len(one) == 2 and all(1 <= size <= MAX_ELEMENT_BYTES for size in one) for one in types),
                "module_bytes",
                f"must be {MAX_TENSORS} at most, each of what goes in and what comes out, 1..{MAX_ELEMENT_BYTES}",
            ),
        )

    @cached_property
    def parameters(self) -> int:
        """How many there are."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def vector_bytes(self) -> int:
        """Of the gradients, as they are exchanged."""
        return self.element_bytes * self.parameters

    @property
    def closing_bytes(self) -> int:
        """Of what is exchanged where the whole state is averaged."""
        return max(self.averaged_bytes or self.state_bytes, self.vector_bytes)

    @cached_property
    def matrices(self) -> list[tuple[int, int]]:
        """Rows and columns of what is compressed: matrices, and larger tensors as matrices."""
        shapes = [shape for layer in self.layers for shape in layer.shapes if len(shape) > 1]
        return [(shape[0], prod(shape[1:])) for shape in shapes]

    @cached_property
    def compressed(self) -> int:
        """Elements of these."""
        return sum(rows * columns for rows, columns in self.matrices)

    @cached_property
    def sample_s(self) -> tuple[float, float]:
        """Seconds a sample: forward, and back."""
        return sum(layer.forward_s for layer in self.layers), sum(layer.backward_s for layer in self.layers)

    def kept_bytes(self, samples: int) -> int:
        """By a pass over so many samples for its way back; 0 where that was not measured."""
        if not self.activation_bytes:
            return 0
        rest_bytes, sample_bytes = self.activation_bytes
        return rest_bytes + samples * sample_bytes

    def forward_s(self, samples: float) -> float:
        """A forward pass over so many samples."""
        return self.start_s + samples * self.sample_s[0]

    def backward_s(self, samples: float) -> float:
        """A backward pass over so many samples."""
        return self.start_s + samples * self.sample_s[1]

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


def program_of(spec: JobSpec) -> str:
    """What a job trains: its recipe, or its program's entrypoint."""
    return f"the recipe {spec.recipe}" if spec.recipe else spec.entrypoint or ""
