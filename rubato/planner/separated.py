"""How long a step with separated layers would take: those behind a cut on one worker, all others in front. Pure.

Of W workers C = W - 1 compute the front, each b/C of an update's b samples, with A elements a sample that go over the
cut and K that come back. All must be here before the keeper's update is made, so the parts of an update follow each
other:
    front forward (b/C) + T(bA) + back forward (b) + T(bK) + T(bK) + back backward (b) + T(bA) + front backward (b/C)
    + the sum of the front's gradients over C + update
T is the way through the keeper's port, which all share. A step has H updates, and the exchange of the whole state.
Numbers may be packed on their way (`strategies.cut_format`).

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; `engine.separation` says what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rubato.planner.links import WORDS, Link, cost_of, time_of
from rubato.planner.profile import Layer, Profile
from rubato.strategies.sizes import cut_bytes, cut_format
from rubato.wire.local_updates import CutFormat


@dataclass(frozen=True)
class Separated:
    """What an update takes."""

    compute_s: float
    exchange_s: float
    sent_bytes: float
    """By the busiest worker."""


@dataclass(frozen=True)
class Cut:
    """Where the layers of a profile are separated."""

    front: tuple[Layer, ...]
    back: tuple[Layer, ...]
    format: CutFormat = "none"
    """How numbers travel between them."""

    @property
    def inputs(self) -> int:
        """A: elements of a sample that go over the cut; 0: not measured."""
        return self.back[0].inputs

    @property
    def outputs(self) -> int:
        """K: elements of a sample that come back; 0: not measured."""
        return self.back[-1].outputs

    @property
    def most_parameters(self) -> int:
        """Of the side that has more."""
        return max(_parameters(self.front), _parameters(self.back))

    def update(self, profile: Profile, link: Link, workers: int, samples: float) -> Separated:
        """One update by two workers or more.

        Args:    samples: b, of all together.
        """
        others = workers - 1
        front_s = sum(layer.forward_s + layer.backward_s for layer in self.front) * samples / others
        back_s = sum(layer.forward_s + layer.backward_s for layer in self.back) * samples
        to_keeper = self._bytes(profile, samples, self.inputs, goes_in=True) + self._bytes(
            profile, samples, self.outputs
        )
        from_keeper = self._bytes(profile, samples, self.inputs + self.outputs)
        front_bytes = profile.element_bytes * _parameters(self.front)
        sums = cost_of("direct", others, front_bytes)
        return Separated(
            2 * profile.start_s + front_s + back_s,
            4 * WORDS * link.latency_s
            + (to_keeper + from_keeper) / link.bytes_per_s
            + time_of("direct", others, front_bytes, link),
            max(from_keeper, to_keeper / others + sums.port_bytes),
        )

    def _bytes(self, profile: Profile, samples: float, elements: int, *, goes_in: bool = False) -> float:
        used = cut_format(self.format, profile.element_bytes, goes_in=goes_in)
        return cut_bytes(used, samples, elements, profile.element_bytes)


def cut_of(profile: Profile, path: str, packed: CutFormat = "none") -> Cut | None:
    """The layers before and behind a module; None where the profile has none on either side.

    Args:
        packed: how numbers travel between them.
        path: as `model.named_modules()` tells it, with the model's name before it or without.
    """
    within = {layer.name for layer in profile.layers if f"{layer.name}.".startswith(f"{path}.")}
    if not within:  # of one of several models, told without its name
        within = {one.name for one in profile.layers if f"{one.name.partition('.')[2]}.".startswith(f"{path}.")}
    back = tuple(layer for layer in profile.layers if layer.name in within)
    front = tuple(layer for layer in profile.layers if layer.name not in within)
    return Cut(front, back, packed) if front and back else None


def _parameters(layers: Sequence[Layer]) -> int:
    return sum(layer.parameters for layer in layers)
