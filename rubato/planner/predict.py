"""How long a step would take, term by term. Pure.

The backward pass completes buckets one after the other, the last layer's first; they queue for one link:
    s_i = max(ready_i, e_{i-1}),  e_i = s_i + T(n_i)
    T_step = forward + max(backward, e_last) + update
Where microbatches train by themselves, a step is all their updates, and one exchange behind them; with a delay the
last updates hide it, with labels of its own.
Where a server makes H updates of gradients that the W - 1 others compute, each in c seconds, and a vector takes t to it
and t back, an update u, that takes H max((c + 4a + u) / (W - 1) + 2t, u), whoever is short, workers and link or server,
less min(H, W - 1) t, as all have the first weights. Others that are equally fast stay in step, as they begin a round
together: all gradients take the server's link at once, and then all weights, one way after the other.
Where it waits for N = max(1, W - 1 - b) pieces of each, the N-th of W - 1 normal times counts, as Blom has it: with
p = (N - 3/8)/(W - 1 + 1/4), c (1 + cv z(p)).
Of these 4a, a being a word's latency, the server waits for a gradient, which takes a; so does a worker for the head of
the answer, and is ready for the weights behind it when that is there, which takes 2a (see `planner.links`).
Where layers are separated, see `planner.separated`.
A compressed exchange begins when the pass is over, as it looks at all of it, and its codec is not hidden either. One
worker alone exchanges nothing, but compresses as well.
Of W workers the slowest counts: with a spread cv of their times, E[max] = t (1 + cv sqrt(2 ln W)).

What the engine says besides is short, and its latency counts. Before anything is added up all W tell all which parts
they hold, by gloo's all-gather: a ring of W - 1 messages, 2a(W - 1). Behind the engine's own exchange, in whose last
messages headers are, all confirm that they have received it, at once: 2a, and 2aW together. A strategy's exchange has
headers and buffers told behind it by another all-gather, which confirms, too: 4a(W - 1) together.

Before a checkpoint all tell each other what they keep of gradients, or how far their own weights have come: a sum of s
seconds. With T seconds between checkpoints it stretches a step by s/(T - s) of it, and by s at most, as none has two.

Source: Shi et al. 2019, arXiv:1811.11141 (the queue); Qiao et al. 2021, Pollux (goodput); Blom 1958 (order statistics).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, log, sqrt
from statistics import NormalDist

from rubato.planner.links import WORDS, Link, labels_s
from rubato.planner.methods import Strategy, codec_s, exchange_s, message_s, messages, settlement_s
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut

_BLOM = 3 / 8
BUCKET_BYTES = 8 << 20
"""As the engine cuts its vector."""
_ANSWERED = 1 + WORDS
"""Latencies until a head and then the weights are there."""


@dataclass(frozen=True)
class Saves:
    """How often checkpoints are saved."""

    every_s: float = inf
    every_steps: float = inf
    """Instead, where it is finite."""


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
    settling_s: float = 0.0
    """Of what is settled at checkpoints, a step's share."""

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.compute_s + self.exposed_s + self.codec_s + self.update_s + self.settling_s

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
            "what is settled at checkpoints": self.settling_s,
        }
        name = max(terms, key=lambda one: terms[one])
        return name, terms[name] / self.step_s


def samples_of(strategy: Strategy, workers: int, batch: int, microbatches: int, *, several: bool = False) -> float:
    """Of a pass of the worker whose passes are largest; where layers are separated, of those behind the cut.

    Args:    see `predict`.
    """
    of_update = batch / strategy.sync_every
    if strategy.local == "asynchronous":
        return of_update
    if strategy.local == "synchronous" and workers > 1:
        return of_update / _counted(strategy, workers)
    if strategy.cut is not None and workers > 1:
        return strategy.cut.kept_samples(workers, of_update)
    return of_update / microbatches * (ceil(microbatches / workers) if several else 1)


def predict(
    profile: Profile,
    link: Link,
    strategy: Strategy,
    workers: int,
    batch: int,
    microbatches: int,
    *,
    several: bool = False,
    saves: Saves = Saves(),
) -> Prediction:
    """A step.

    Args:
        batch: samples of all workers together.
        microbatches: V; a worker has at most ceil(V/W) of them.
        several: one pass goes over all microbatches of a worker (`reproducible: false`).
        saves: what checkpoints cost is shared out over the steps between them.
    """
    found = _step(profile, link, strategy, workers, batch, microbatches, several=several)
    settled_s = settlement_s(strategy, profile, workers, link)
    if isfinite(saves.every_steps):
        return replace(found, settling_s=settled_s / saves.every_steps)
    between_s = saves.every_s - settled_s
    share_s = found.step_s * settled_s / between_s if between_s > 0 else settled_s
    return replace(found, settling_s=min(settled_s, share_s))


def _step(
    profile: Profile, link: Link, strategy: Strategy, workers: int, batch: int, microbatches: int, *, several: bool
) -> Prediction:
    """Without what is settled at checkpoints."""
    if strategy.local == "asynchronous":
        return _served(profile, link, strategy, workers, batch)
    if strategy.local == "synchronous" and workers > 1:
        return _backed(profile, link, strategy, workers, batch)
    if strategy.cut is not None and workers > 1:
        return _separated(profile, link, strategy, strategy.cut, workers, batch)
    passes = strategy.sync_every * (1 if several else ceil(microbatches / workers))
    samples = samples_of(strategy, workers, batch, microbatches, several=several)
    updates = passes if strategy.local != "none" else 1
    slowest = 1.0 + (profile.spread * sqrt(2 * log(workers)) if workers > 1 else 0.0)
    backward_s = profile.backward_s(samples) * slowest
    compute_s = passes * (profile.forward_s(samples) * slowest + backward_s)
    exposed_s = _exposed(profile, link, strategy, workers, samples, slowest, backward_s)
    return Prediction(
        workers,
        compute_s,
        exposed_s,
        codec_s(strategy, profile, workers),
        profile.update_s * profile.parameters * updates,
        batch,
    )


def _served(profile: Profile, link: Link, strategy: Strategy, workers: int, batch: int) -> Prediction:
    """A step of updates by a server; one worker alone does both in turn."""
    updates, helpers = strategy.sync_every, max(1, workers - 1)
    samples, update_s = samples_of(strategy, workers, batch, 1), profile.update_s * profile.parameters
    compute_s = profile.forward_s(samples) + profile.backward_s(samples)
    exposed_s = 0.0
    if workers > 1:
        way_s = link.moved_s(profile.vector_bytes)
        words_s = (1 + _ANSWERED) * link.latency_s
        each_s = (compute_s + words_s + update_s) / helpers + 2 * way_s
        exposed_s = updates * (max(each_s, update_s) - (compute_s + update_s) / helpers)
        exposed_s -= min(updates, helpers) * way_s  # to begin with all have the weights
        exposed_s += _closing_s(profile, link, strategy, workers)
    return Prediction(workers, updates * compute_s / helpers, exposed_s, 0.0, updates * update_s / helpers, batch)


def _counted(strategy: Strategy, workers: int) -> int:
    """Pieces of an update by a server that waits: of as many as there are workers but it and the backups."""
    return max(1, workers - 1 - strategy.backups)


def _backed(profile: Profile, link: Link, strategy: Strategy, workers: int, batch: int) -> Prediction:
    """A step of synchronous updates by a server, each of as many pieces as there are workers but it and the backups."""
    updates, helpers = strategy.sync_every, workers - 1
    count = _counted(strategy, workers)
    samples, update_s = samples_of(strategy, workers, batch, 1), profile.update_s * profile.parameters
    slowest = 1.0 + profile.spread * max(0.0, NormalDist().inv_cdf((count - _BLOM) / (helpers + 1 - 2 * _BLOM)))
    compute_s = (profile.forward_s(samples) + profile.backward_s(samples)) * slowest
    way_s = link.moved_s(helpers * profile.vector_bytes)
    words_s = updates * (1 + _ANSWERED) - WORDS  # to begin with all have the weights
    exposed_s = (2 * updates - 1) * way_s + words_s * link.latency_s + _closing_s(profile, link, strategy, workers)
    return Prediction(workers, updates * compute_s, exposed_s, 0.0, updates * update_s, batch)


def _separated(profile: Profile, link: Link, strategy: Strategy, cut: Cut, workers: int, batch: int) -> Prediction:
    """A step of updates with layers on workers of their own."""
    updates = strategy.sync_every
    each = cut.update(profile, link, workers, batch / updates)
    handed_s = WORDS * link.latency_s + link.moved_s(cut.handed_bytes(profile))
    exposed_s = updates * each.exchange_s + handed_s + _closing_s(profile, link, strategy, workers)
    # The keeper and the others step their optimizers at the same time.
    update_s = profile.update_s * cut.most_parameters
    return Prediction(workers, updates * each.compute_s, exposed_s, 0.0, updates * update_s, batch)


def _closing_s(profile: Profile, link: Link, strategy: Strategy, workers: int) -> float:
    """The exchange behind a step's own updates, with what the engine says."""
    closing = messages(strategy, profile, workers)[-1]
    return message_s(closing, strategy, workers, link) + sum(_said_s(strategy, workers, link))


def _said_s(strategy: Strategy, workers: int, link: Link) -> tuple[float, float]:
    """What the engine says before an exchange, and behind it."""
    labels = labels_s(workers, link)
    return labels, WORDS * link.latency_s if strategy.is_own else labels


def _exposed(
    profile: Profile, link: Link, strategy: Strategy, workers: int, samples: float, slowest: float, backward_s: float
) -> float:
    if workers == 1:
        return 0.0
    before_s, behind_s = _said_s(strategy, workers, link)
    if strategy.delay:
        update_s = profile.forward_s(samples) * slowest + backward_s + profile.update_s * profile.parameters
        left_s = before_s + exchange_s(strategy, profile, workers, link) - strategy.delay * update_s
        return max(0.0, left_s) + before_s + behind_s
    if not strategy.overlaps or profile.device != "cpu":
        return before_s + exchange_s(strategy, profile, workers, link) + behind_s
    end_s = 0.0
    for number, (ready_s, elements) in enumerate(profile.ready(samples, BUCKET_BYTES)):
        end_s = max(ready_s * slowest, end_s) + exchange_s(strategy, profile, workers, link, elements)
        end_s += before_s if number == 0 else 0.0
    return max(0.0, end_s + behind_s - backward_s)
