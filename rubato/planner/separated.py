"""How long a step with separated layers would take: those behind a cut on some workers, all others in front. Pure.

Of W workers F are keepers, who compute the back; C = W - F compute the front, the busiest f of an update's b samples,
with A elements a sample that go over the cut and K that come back. f is b/C, and more where whole microbatches are
dealt out unevenly. A keeper has every F-th of the others, and the busiest so s of the samples. All must be here before
its update is made, so the parts of an update follow each other:
    front forward (f) + T(sA) + back forward (s) + T(sK) + T(sK) + back backward (s) + T(sA) + front backward (f)
    + the sum of the front's gradients over C, or what the keepers do meanwhile, which takes longer + update
T is the way through the keeper's port, which all that ask it share. Each of the four is told as a head, for which the
other waits, and then a tensor, for which it is ready only when the head is there: 3a, a being a word's latency. While
the front's gradients are summed, the others say that they are done, in the same way, and hear a word back when the
keeper has made its update: 4a, and with several keepers the sum of the back's gradients between. A step has H updates;
then one of the others hands the first keeper the front with what optimizers keep of it, and the whole state is
exchanged. Numbers may be packed on their way (`strategies.cut_format`, `strategies.front_format`).

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; `engine.separation` says what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rubato.planner.counts import doubled
from rubato.planner.links import WORDS, Link, cost_of, time_of
from rubato.planner.profile import Layer, Profile
from rubato.strategies.sizes import cut_bytes, cut_format, lengths
from rubato.wire.local_updates import CutFormat, FrontFormat

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
    front_format: FrontFormat = "none"
    """How the front travels among those that compute it."""
    pieces: int = 0
    """Equal ones of an update's samples, which are dealt out whole; 0: everybody has as many samples."""

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
        shares = self._shares(others)
        kept = self.kept_samples(workers, samples)
        front_s, back_s = self._pass_s
        moved = self._to_keeper(kept) + self._from_keeper(kept)
        front_bytes, back_bytes = self._sums(profile)
        of_front = time_of("direct", others, front_bytes, link) + self._cast_s(profile, others)
        of_back = time_of("direct", keepers, back_bytes, link) + _DONE * link.latency_s
        return Separated(
            2 * profile.start_s + front_s * samples * max(shares) + back_s * kept,
            4 * _ASKED * link.latency_s + link.moved_s(moved) + max(of_front, of_back),
        )

    def kept_samples(self, workers: int, samples: float) -> float:
        """Of an update's, those that the busiest keeper has, of two workers or more; no other worker has more."""
        keepers, others = self._roles(workers)
        return samples * max(_asked(self._shares(others), keepers))

    def sent(self, profile: Profile, workers: int, samples: float) -> list[float]:
        """By rank, the keepers first, bytes that it sends in an update of two workers or more.

        Args:    samples: b, of all together.
        """
        keepers, others = self._roles(workers)
        front_bytes, back_bytes = self._sums(profile)
        shares = self._shares(others)
        back = cost_of("direct", keepers, back_bytes).port_bytes
        front = cost_of("direct", others, front_bytes).port_bytes
        return [
            *(self._from_keeper(samples * share) + back for share in _asked(shares, keepers)),
            *(self._to_keeper(samples * share) + front for share in shares),
        ]

    def handed_bytes(self, profile: Profile) -> float:
        """What one of the others hands the first keeper at the end of a step.

        A parameter is taken to have as many bytes as its gradient in the vector.
        """
        front, back = self._parameters
        weights = profile.element_bytes * front
        kept = max(weights, profile.state_bytes * front / (front + back))
        return kept - weights + self._front_bytes(profile)

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

    def _shares(self, others: int) -> list[float]:
        """Of an update's samples, of each that computes the front, as `engine.separation` deals them out."""
        return [count / self.pieces for count in lengths(self.pieces, others)] if self.pieces else [1 / others] * others

    def _sums(self, profile: Profile) -> tuple[int, int]:
        """Bytes of the gradients of the front, and of the back."""
        return self._front_bytes(profile), profile.element_bytes * self._parameters[1]

    def _front_bytes(self, profile: Profile) -> int:
        """The parameters of the front, or their gradients, as they travel."""
        used = cut_format(self.front_format, profile.element_bytes, goes_in=False)
        return round(cut_bytes(used, 1, self._parameters[0], profile.element_bytes))

    def _cast_s(self, profile: Profile, others: int) -> float:
        """Seconds to round what is summed, where several sum."""
        is_rounded = self.front_format == "bf16" and others > 1
        return profile.codec_s.get("bf16", 0.0) * self._parameters[0] if is_rounded else 0.0

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


def _asked(shares: Sequence[float], keepers: int) -> list[float]:
    """By keeper, the share of the samples that those have who ask it."""
    return [sum(shares[keeper::keepers]) for keeper in range(keepers)]


def cut_of(
    profile: Profile,
    path: str,
    packed: CutFormat = "none",
    keepers: int = 1,
    front_format: FrontFormat = "none",
    pieces: int = 0,
) -> Cut | None:
    """The layers before and behind a module; None where the profile has none on either side.

    Args:
        packed: how numbers travel between them.
        keepers: so many workers compute those behind it.
        front_format: how those before it travel.
        pieces: of an update's samples; see `Cut`.
        path: as `model.named_modules()` tells it, with the model's name before it or without.
    """
    within = {layer.name for layer in profile.layers if f"{layer.name}.".startswith(f"{path}.")}
    if not within:  # of one of several models, told without its name
        within = {one.name for one in profile.layers if f"{one.name.partition('.')[2]}.".startswith(f"{path}.")}
    back = tuple(layer for layer in profile.layers if layer.name in within)
    front = tuple(layer for layer in profile.layers if layer.name not in within)
    if not front or not back:
        return None
    inputs, outputs, of_input, of_output = _widths(profile, path)
    return Cut(front, back, inputs, outputs, packed, keepers, of_input, of_output, front_format, pieces)


def _widths(profile: Profile, path: str) -> tuple[int, ...]:
    """Elements of a sample that go into a module, and out, and bytes of one of each; zeros: not measured."""
    usual = 4, 4
    known: dict[str, tuple[int, ...]] = {
        one.name: (one.inputs, one.outputs, one.input_bytes, one.output_bytes) for one in profile.layers
    }
    known |= {name: (*widths, *profile.module_bytes.get(name, usual)) for name, widths in profile.modules.items()}
    inner = {name.partition(".")[2]: widths for name, widths in known.items()}
    return known.get(path) or inner.get(path) or (0, 0, *usual)
