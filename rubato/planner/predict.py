"""How long a step would take, term by term. Pure.

The backward pass completes buckets one after the other, the last layer's first; they queue for one link:
    s_i = max(ready_i, e_{i-1}),  e_i = s_i + T(n_i)
    T_step = forward + max(backward, e_last) + update
Where microbatches train by themselves, a step is all their updates, and one exchange behind them.
Where a server makes H updates of gradients that the W - 1 others compute, each in c seconds, and a vector takes t to it
and t back, an update u, that takes H max((c + 2t + u) / (W - 1), t, u): whoever is short, workers, link or server.
Where it waits for N = max(1, W - 1 - b) pieces of each, the N-th of W - 1 normal times counts, as Blom has it: with
p = (N - 3/8)/(W - 1 + 1/4), t (1 + cv z(p)).
Where layers are separated, see `planner.separated`.
A compressed exchange begins when the pass is over, as it looks at all of it, and its codec is not hidden either.
Of W workers the slowest counts: with a spread cv of their times, E[max] = t (1 + cv sqrt(2 ln W)).

Source: Shi et al. 2019, arXiv:1811.11141 (the queue); Qiao et al. 2021, Pollux (goodput); Blom 1958 (order statistics).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from statistics import NormalDist

from rubato.planner.links import WORDS, Link
from rubato.planner.methods import Strategy, codec_s, exchange_s, message_s, messages
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut

_BLOM = 3 / 8
BUCKET_BYTES = 8 << 20
"""As the engine cuts its vector."""


@dataclass(frozen=True)
class Prediction:
    """A step of W workers."""

    workers: int
    compute_s: float
    """Both passes of the slowest, over all its microbatches."""
    exposed_s: float
    """Of the exchange, what the backward pass does not hide."""
    codec_s: float
    update_s: float
    samples: int
    """Of a step."""

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.compute_s + self.exposed_s + self.codec_s + self.update_s

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.samples / self.step_s

    @property
    def binding(self) -> tuple[str, float]:
        """The largest term, and its share of the step."""
        terms = {
            "computation": self.compute_s,
            "exchange": self.exposed_s,
            "compression": self.codec_s,
            "the optimizer": self.update_s,
        }
        name = max(terms, key=lambda one: terms[one])
        return name, terms[name] / self.step_s


def predict(
    profile: Profile,
    link: Link,
    strategy: Strategy,
    workers: int,
    batch: int,
    microbatches: int,
    *,
    spread: float = 0.0,
    several: bool = False,
) -> Prediction:
    """A step.

    Args:
        batch: samples of all workers together.
        microbatches: V; a worker has at most ceil(V/W) of them.
        spread: cv, the standard deviation of the workers' times over their mean.
        several: one pass goes over all microbatches of a worker (`reproducible: false`).
    """
    if strategy.local == "asynchronous":
        return _served(profile, link, strategy, workers, batch)
    if strategy.local == "synchronous" and workers > 1:
        return _backed(profile, link, strategy, workers, batch, spread)
    if strategy.cut is not None and workers > 1:
        return _separated(profile, link, strategy, strategy.cut, workers, batch)
    mine = ceil(microbatches / workers)
    passes, samples = (1, batch / microbatches * mine) if several else (mine, batch / microbatches)
    passes, samples = passes * strategy.sync_every, samples / strategy.sync_every
    updates = passes if strategy.local != "none" else 1
    slowest = 1.0 + (spread * sqrt(2 * log(workers)) if workers > 1 else 0.0)
    backward_s = profile.backward_s(samples) * slowest
    compute_s = passes * (profile.forward_s(samples) * slowest + backward_s)
    exposed_s = _exposed(profile, link, strategy, workers, samples, slowest, backward_s)
    return Prediction(
        workers,
        compute_s,
        exposed_s,
        codec_s(strategy, profile) if workers > 1 else 0.0,
        profile.update_s * profile.parameters * updates,
        batch,
    )


def _served(profile: Profile, link: Link, strategy: Strategy, workers: int, batch: int) -> Prediction:
    """A step of updates by a server; one worker alone does both in turn."""
    updates, helpers = strategy.sync_every, max(1, workers - 1)
    samples, update_s = batch / updates, profile.update_s * profile.parameters
    compute_s = profile.forward_s(samples) + profile.backward_s(samples)
    exposed_s = 0.0
    if workers > 1:
        way_s = link.latency_s + profile.element_bytes * profile.parameters / link.bytes_per_s
        each_s = (compute_s + 2 * way_s + update_s) / helpers
        closing = messages(strategy, profile, workers)[-1]
        exposed_s = updates * (max(each_s, way_s, update_s) - (compute_s + update_s) / helpers)
        exposed_s += message_s(closing, strategy, workers, link)
    return Prediction(workers, updates * compute_s / helpers, exposed_s, 0.0, updates * update_s / helpers, batch)


def _backed(profile: Profile, link: Link, strategy: Strategy, workers: int, batch: int, spread: float) -> Prediction:
    """A step of synchronous updates by a server, each of as many pieces as there are workers but it and the backups."""
    updates, helpers = strategy.sync_every, workers - 1
    count = max(1, helpers - strategy.backups)
    samples, update_s = batch / updates / count, profile.update_s * profile.parameters
    slowest = 1.0 + spread * max(0.0, NormalDist().inv_cdf((count - _BLOM) / (helpers + 1 - 2 * _BLOM)))
    compute_s = (profile.forward_s(samples) + profile.backward_s(samples)) * slowest
    way_s = link.latency_s + helpers * profile.element_bytes * profile.parameters / link.bytes_per_s
    closing = messages(strategy, profile, workers)[-1]
    exposed_s = (2 * updates - 1) * way_s + message_s(closing, strategy, workers, link)
    return Prediction(workers, updates * compute_s, exposed_s, 0.0, updates * update_s, batch)


def _separated(profile: Profile, link: Link, strategy: Strategy, cut: Cut, workers: int, batch: int) -> Prediction:
    """A step of updates with layers on workers of their own."""
    updates = strategy.sync_every
    each = cut.update(profile, link, workers, batch / updates)
    closing = messages(strategy, profile, workers)[-1]
    handed_s = WORDS * link.latency_s + cut.handed_bytes(profile) / link.bytes_per_s
    exposed_s = updates * each.exchange_s + handed_s + message_s(closing, strategy, workers, link)
    # The keeper and the others step their optimizers at the same time.
    update_s = profile.update_s * cut.most_parameters
    return Prediction(workers, updates * each.compute_s, exposed_s, 0.0, updates * update_s, batch)


def _exposed(
    profile: Profile, link: Link, strategy: Strategy, workers: int, samples: float, slowest: float, backward_s: float
) -> float:
    if workers == 1:
        return 0.0
    if not strategy.overlaps or profile.device != "cpu":
        return exchange_s(strategy, profile, workers, link)
    end_s = 0.0
    for ready_s, elements in profile.ready(samples, BUCKET_BYTES):
        end_s = max(ready_s * slowest, end_s) + exchange_s(strategy, profile, workers, link, elements)
    return max(0.0, end_s - backward_s)
