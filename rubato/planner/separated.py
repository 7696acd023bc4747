"""How long a step with separated layers would take: those behind a cut on some workers, all others in front. Pure.

Of W workers F are keepers, who compute the back; C = W - F compute the front, each b/C of an update's b samples, with A
elements a sample that go over the cut and K that come back. A keeper has ceil(C/F) of the others, and so s of the
samples. All must be here before its update is made, so the parts of an update follow each other:
    front forward (b/C) + T(sA) + back forward (s) + T(sK) + T(sK) + back backward (s) + T(sA) + front backward (b/C)
    + the sum of the front's gradients over C, or what the keepers do meanwhile, which takes longer + update
T is the way through the keeper's port, which all that ask it share. Each of the four is told as a head, for which the
other waits, and then a tensor, for which it is ready only when the head is there: 3a, a being a word's latency. While
the front's gradients are summed, the others say that they are done, in the same way, and hear a word back when the
keeper has made its update: 4a, and with several keepers the sum of the back's gradients between. A step has H updates;
then one of the others hands the first keeper the front with what optimizers keep of it, and the whole state is
exchanged. Numbers may be packed on their way (`strategies.cut_format`).

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; `engine.separation` says what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from rubato.planner.counts import doubled
from rubato.planner.links import WORDS, Link, cost_of, time_of
from rubato.planner.profile import Layer, Profile
from rubato.strategies.sizes import cut_bytes, cut_format
from rubato.wire.local_updates import CutFormat

_ASKED = 1 + WORDS
"""Latencies until a head and then its tensor are there."""
_DONE = _ASKED + 1


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
    inputs: int = 0
    """A: elements of a sample that go over the cut; 0: not measured."""
    outputs: int = 0
    """K: elements of a sample that come back; 0: not measured."""
    format: CutFormat = "none"
    """How numbers travel between them."""
    keepers: int = 1
    """F, where twice as many workers are there."""
    input_bytes: int = 4
    """Of an element that goes over the cut, and of its gradient; not those of the vector of gradients."""
    output_bytes: int = 4
    """Of one that comes back."""

    @property
    def most_parameters(self) -> int:
        """Of the side that has more."""
        return max(self._parameters)

    @cached_property
    def _parameters(self) -> tuple[int, int]:
        """Of the front, and of the back."""
        front, back = (sum(layer.parameters for layer in side) for side in (self.front, self.back))
        return front, back

    @cached_property
    def _pass_s(self) -> tuple[float, float]:
        """Seconds a sample, both ways, of the front, and of the back."""
        front, back = (sum(layer.forward_s + layer.backward_s for layer in side) for side in (self.front, self.back))
        return front, back

    def update(self, profile: Profile, link: Link, workers: int, samples: float) -> Separated:
        """One update by two workers or more.

        Args:    samples: b, of all together.
        """
        keepers, others = self._roles(workers)
        kept = samples * ceil(others / keepers) / others
        front_s, back_s = self._pass_s
        moved = self._to_keeper(kept) + self._from_keeper(kept)
        front_bytes, back_bytes = self._sums(profile)
        of_front = time_of("direct", others, front_bytes, link)
        of_back = time_of("direct", keepers, back_bytes, link) + _DONE * link.latency_s
        return Separated(
            2 * profile.start_s + front_s * samples / others + back_s * kept,
            4 * _ASKED * link.latency_s + link.moved_s(moved) + max(of_front, of_back),
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
            *(self._from_keeper(each * count) + back for count in asked),
            *[self._to_keeper(each) + front] * others,
        ]

    def handed_bytes(self, profile: Profile) -> float:
        """What one of the others hands the first keeper at the end of a step."""
        front_bytes, back_bytes = self._sums(profile)
        return max(front_bytes, profile.state_bytes * front_bytes / (front_bytes + back_bytes))

    def with_best_keepers(self, profile: Profile, link: Link, workers: int, samples: float) -> Cut:
        """The same with the number of keepers whose updates are fastest, of powers of two and the half of all workers.

        Args:    samples: of an update.
        """

        def seconds(one: Cut) -> float:
            each = one.update(profile, link, workers, samples)
            return each.compute_s + each.exchange_s

        return min((replace(self, keepers=count) for count in doubled(workers // 2)), key=seconds, default=self)

    def _roles(self, workers: int) -> tuple[int, int]:
        """Keepers, and all others, of whom there are no fewer."""
        keepers = min(self.keepers, workers // 2)
        return keepers, workers - keepers

    def _sums(self, profile: Profile) -> tuple[int, int]:
        """Bytes of the gradients of the front, and of the back."""
        front, back = self._parameters
        return profile.element_bytes * front, profile.element_bytes * back

    def _to_keeper(self, samples: float) -> float:
        """What goes in, and gradients of what came out."""
        return self._bytes(samples, self.inputs, self.input_bytes, goes_in=True) + self._of_outputs(samples)

    def _from_keeper(self, samples: float) -> float:
        """What comes out, and gradients of what went in."""
        return self._of_outputs(samples) + self._bytes(samples, self.inputs, self.input_bytes)

    def _of_outputs(self, samples: float) -> float:
        return self._bytes(samples, self.outputs, self.output_bytes)

    def _bytes(self, samples: float, elements: int, element_bytes: int, *, goes_in: bool = False) -> float:
        used = cut_format(self.format, element_bytes, goes_in=goes_in)
        return cut_bytes(used, samples, elements, element_bytes)


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
    inputs, outputs, *sizes = _widths(profile, path)
    return Cut(front, back, inputs, outputs, packed, keepers, *sizes) if front and back else None


def _widths(profile: Profile, path: str) -> tuple[int, ...]:
    """Elements of a sample that go into a module, and out, and bytes of one of each; zeros: not measured."""
    usual = 4, 4
    known: dict[str, tuple[int, ...]] = {
        one.name: (one.inputs, one.outputs, one.input_bytes, one.output_bytes) for one in profile.layers
    }
    known |= {name: (*widths, *profile.module_bytes.get(name, usual)) for name, widths in profile.modules.items()}
    inner = {name.partition(".")[2]: widths for name, widths in known.items()}
    return known.get(path) or inner.get(path) or (0, 0, *usual)
