"""How long a step with separated layers would take: those behind a cut on some workers, all others in front. Pure.

Of W workers F are keepers, who compute the back; C = W - F compute the front, each b/C of an update's b samples, with A
elements a sample that go over the cut and K that come back. A keeper has ceil(C/F) of the others, and so s of the
samples. All must be here before its update is made, so the parts of an update follow each other:
    front forward (b/C) + T(sA) + back forward (s) + T(sK) + T(sK) + back backward (s) + T(sA) + front backward (b/C)
    + the sum of the front's gradients over C, or that of the back's over F, which takes longer + update
T is the way through the keeper's port, which all that ask it share. A step has H updates; then one of the others hands
the first keeper the front with what optimizers keep of it, and the whole state is exchanged. Numbers may be packed on
their way (`strategies.cut_format`).

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; `engine.separation` says what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from rubato.planner.links import WORDS, Link, cost_of, time_of
from rubato.planner.profile import Layer, Profile
from rubato.strategies.sizes import cut_bytes, cut_format
from rubato.wire.local_updates import CutFormat


@dataclass(frozen=True)
class Separated:
    """What an update takes."""

    compute_s: float
    exchange_s: float


@dataclass(frozen=True)
class Cut:
    """Where the layers of a profile are separated."""

    front: tuple[Layer, ...]
    back: tuple[Layer, ...]
    format: CutFormat = "none"
    """How numbers travel between them."""
    keepers: int = 1
    """F, where twice as many workers are there."""

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
        keepers, others = self._roles(workers)
        kept = samples * ceil(others / keepers) / others
        front_s = sum(layer.forward_s + layer.backward_s for layer in self.front) * samples / others
        back_s = sum(layer.forward_s + layer.backward_s for layer in self.back) * kept
        moved = self._to_keeper(profile, kept) + self._from_keeper(profile, kept)
        front_bytes, back_bytes = self._sums(profile)
        sums = time_of("direct", others, front_bytes, link), time_of("direct", keepers, back_bytes, link)
        return Separated(
            2 * profile.start_s + front_s + back_s,
            4 * WORDS * link.latency_s + moved / link.bytes_per_s + max(sums),
        )

    def sent(self, profile: Profile, workers: int, samples: float) -> list[float]:
        """By rank, the keepers first, bytes that it sends in an update of two workers or more.

        Args:    samples: b, of all together.
        """
        keepers, others = self._roles(workers)
        front_bytes, back_bytes = self._sums(profile)
        asked = [len(range(keeper, others, keepers)) for keeper in range(keepers)]
        back = cost_of("direct", keepers, back_bytes).port_bytes
        front = cost_of("direct", others, front_bytes).port_bytes
        each = samples / others
        return [
            *(self._from_keeper(profile, each * count) + back for count in asked),
            *[self._to_keeper(profile, each) + front] * others,
        ]

    def handed_bytes(self, profile: Profile) -> float:
        """What one of the others hands the first keeper at the end of a step."""
        front_bytes, back_bytes = self._sums(profile)
        return max(front_bytes, profile.state_bytes * front_bytes / (front_bytes + back_bytes))

    def with_best_keepers(self, profile: Profile, link: Link, workers: int, samples: float) -> Cut:
        """The same with the number of keepers whose updates are fastest, the fewest of those.

        Args:    samples: of an update.
        """

        def seconds(one: Cut) -> float:
            each = one.update(profile, link, workers, samples)
            return each.compute_s + each.exchange_s

        return min((replace(self, keepers=count) for count in range(1, workers // 2 + 1)), key=seconds, default=self)

    def _roles(self, workers: int) -> tuple[int, int]:
        """Keepers, and all others, of whom there are no fewer."""
        keepers = min(self.keepers, workers // 2)
        return keepers, workers - keepers

    def _sums(self, profile: Profile) -> tuple[int, int]:
        """Bytes of the gradients of the front, and of the back."""
        return profile.element_bytes * _parameters(self.front), profile.element_bytes * _parameters(self.back)

    def _to_keeper(self, profile: Profile, samples: float) -> float:
        return self._bytes(profile, samples, self.inputs, goes_in=True) + self._bytes(profile, samples, self.outputs)

    def _from_keeper(self, profile: Profile, samples: float) -> float:
        return self._bytes(profile, samples, self.inputs + self.outputs)

    def _bytes(self, profile: Profile, samples: float, elements: int, *, goes_in: bool = False) -> float:
        used = cut_format(self.format, profile.element_bytes, goes_in=goes_in)
        return cut_bytes(used, samples, elements, profile.element_bytes)


def cut_of(profile: Profile, path: str, packed: CutFormat = "none", keepers: int = 1) -> Cut | None:
    """The layers before and behind a module; None where the profile has none on either side.

    Args:
        packed: how numbers travel between them.
        keepers: so many workers compute those behind it.
        path: as `model.named_modules()` tells it, with the model's name before it or without.
    """
    within = {layer.name for layer in profile.layers if f"{layer.name}.".startswith(f"{path}.")}
    if not within:  # of one of several models, told without its name
        within = {one.name for one in profile.layers if f"{one.name.partition('.')[2]}.".startswith(f"{path}.")}
    back = tuple(layer for layer in profile.layers if layer.name in within)
    front = tuple(layer for layer in profile.layers if layer.name not in within)
    return Cut(front, back, packed, keepers) if front and back else None


def _parameters(layers: Sequence[Layer]) -> int:
    return sum(layer.parameters for layer in layers)
