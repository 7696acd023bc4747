"""Which number of workers and which strategy, and what stands against the others. Pure.

Every candidate is predicted: the numbers of workers that a step uses well, and of the strategies those that the spec
allows. What is recommended gives what is learned as the spec says; a faster one that changes it is told, not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import get_args

from rubato.planner.batches import Batch, compare, sentences
from rubato.planner.lemmas import best_workers
from rubato.planner.links import Link
from rubato.planner.methods import Strategy, sent_bytes
from rubato.planner.predict import Prediction, predict
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut, cut_of
from rubato.wire.batch import next_useful
from rubato.wire.local_updates import LocalMethod
from rubato.wire.spec import JobSpec

PAYS = 0.5
"""A worker more must bring at least this share of what the first ones bring, as with `autoscale: goodput`."""
WORTH_IT = 1.2
"""So many times as fast must be what changes what is learned, to be told."""
PRETTY = {
    "auto": "whole gradients, each worker adding up a part",
    "ring": "whole gradients, over a ring",
    "tree": "whole gradients, over a reduction tree",
    "halving_doubling": "whole gradients, by halving and doubling",
    "server": "whole gradients, added up by some for all",
    "local_sgd": "the mean of the weights behind the updates of a step",
    "diloco": "an outer update behind the updates of a step",
    "streaming_diloco": "an outer update of a fragment behind the updates of a step",
    "synchronous": "a server that makes updates when gradients are there, but for the slowest",
    "asynchronous": "a server that makes updates as gradients come",
    "layer_separation": "the layers behind the cut on some of them",
}


@dataclass(frozen=True)
class Option:
    """A strategy with a number of workers."""

    name: str
    """As a spec says it: an algorithm or a compression method of `aggregation`, or a method of `local_updates`."""
    workers: int
    step_s: float
    compute_s: float
    exposed_s: float
    codec_s: float
    update_s: float
    samples_per_s: float
    speedup: float
    """Against one worker."""
    sent_bytes: float
    """By the busiest worker, in a step."""
    memory_bytes: int
    """Of one worker, without what the program and its activations take; 0: the profile does not say."""
    binding: str
    """What the most of a step is spent on, in words."""
    is_whole: bool
    """Whether nothing of a gradient is left out or rounded."""


@dataclass(frozen=True)
class Refused:
    """A strategy that is no candidate."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The answer."""

    recommended: Option
    sentences: tuple[str, ...]
    """Why, and what to know."""
    best: tuple[Option, ...]
    """The fastest first, one of each strategy."""
    by_workers: tuple[Option, ...]
    """What is recommended, with each number of workers."""
    refused: tuple[Refused, ...]
    batches: tuple[Batch, ...] = ()
    """With a noise scale: other global batches beside the spec's."""


def plan(profile: Profile, link: Link, spec: JobSpec, noise_scale: float | None = None) -> Plan:
    """What would be best for a job on workers of this kind, with links of this kind between them.

    Args:    noise_scale: of its gradients, in samples, as a job like it has charted; None: batches are not compared.
    """
    allowed, refused = candidates(spec, profile)
    counts = useful_counts(spec)
    alone = _option(profile, link, spec, allowed[0], 1, 1.0).samples_per_s
    options = {one: [_option(profile, link, spec, one, workers, alone) for workers in counts] for one in allowed}
    best = sorted(
        (max(one, key=lambda option: option.samples_per_s) for one in options.values()),
        key=lambda option: option.step_s,
    )
    one_worker = [one for one in best if one.workers == 1]
    best = [one for one in best if one not in one_worker[1:]]  # where nothing is exchanged all are the same
    strategy = _strategy_of(spec, allowed)
    own = options[strategy]
    chosen = _enough(own)
    compared: tuple[Batch, ...] = ()
    told = [*_stands_for(spec, refused, chosen), *_sentences(profile, link, spec, chosen, own, best)]
    told += _other_shares(profile, link, spec, strategy, own)
    if noise_scale is not None:
        compared = _compare(profile, link, spec, strategy, noise_scale)
        told += sentences(compared, spec.batch.global_size, noise_scale)
    return Plan(
        chosen,
        tuple(told),
        tuple(best),
        tuple(own),
        tuple(refused),
        compared,
    )


def _compare(profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, noise_scale: float) -> tuple[Batch, ...]:
    """Other batches, each with the workers that pay for it."""

    def speed(size: int) -> tuple[int, float]:
        other = replace(spec, batch=replace(spec.batch, global_size=size, num_microbatches=spec.num_microbatches))
        best = _enough([_option(profile, link, other, strategy, workers, 1.0) for workers in useful_counts(other)])
        return best.workers, best.samples_per_s

    pieces = spec.num_microbatches * strategy.sync_every
    return compare(spec.batch.global_size, pieces, noise_scale, speed)


def candidates(spec: JobSpec, profile: Profile) -> tuple[list[Strategy], list[Refused]]:
    """Strategies that the spec allows, the one it has by default first; and the others."""
    told, local = spec.aggregation.compression, spec.local_updates
    base = Strategy(
        density=told.density,
        rank=told.rank,
        rows=told.rows,
        columns=None if told.columns == "auto" else told.columns,
        tree=spec.num_microbatches if spec.reproducible else 0,
    )
    algorithm = spec.aggregation.algorithm
    if told.method == "sketch" and algorithm != "auto":
        base = replace(base, sketch_algorithm=algorithm)
    cut = cut_of(profile, local.cut, local.cut_format, local.keepers) if local.cut is not None else None
    missing = _missing(cut, local.cut) if local.cut is not None else ""
    if not missing:
        base = replace(base, local=local.method, sync_every=local.sync_every, cut=cut, backups=local.backups)
        base = replace(base, fragments=local.fragments)
    servers = spec.aggregation.servers
    allowed, refused = [base], []
    for pattern in ("ring", "tree", "halving_doubling"):
        allowed.append(replace(base, algorithm=pattern))
    allowed.append(replace(base, servers=servers))
    for method in ("fp16", "bf16", "powersgd", "topk", "gtopk", "onebit", "sketch", "sketched_sgd"):
        allowed.append(replace(base, method=method))
    refused.append(Refused("threshold", "how many elements grow beyond the threshold depends on the training"))
    refused.append(Refused("hierarchical_topk", "which workers share a machine is decided when they start"))
    if not local.is_on:
        because = (
            "it makes many updates between two exchanges: say it in the spec, as local_updates, to have it planned"
        )
        refused += [Refused(name, because) for name in get_args(LocalMethod) if name != "none"]
    if missing:
        refused.append(Refused("layer_separation", missing))
    elif local.is_on:
        because = "the spec has local_updates, which have an exchange of their own"
        refused = [Refused(name_of(replace(one, local="none")), because) for one in allowed[1:]] + refused
        allowed = allowed[:1]
    elif spec.reproducible:
        because = "the spec says reproducible: true, and its bits depend on the number of workers"
        refused = [Refused(name_of(one), because) for one in allowed[1:]] + refused
        allowed = allowed[:1]
    return allowed, refused


def _missing(cut: Cut | None, path: str) -> str:
    """Why separated layers are not predicted; empty: they are."""
    if cut is None:
        return f"the profile has no layers on both sides of {path!r}, which is local_updates.cut"
    if not (cut.inputs and cut.outputs):
        return "the profile does not tell what goes over the cut: `rubato profile` measures it anew"
    return ""


def useful_counts(spec: JobSpec) -> list[int]:
    """Numbers of workers between the bounds of the spec whose largest share of a step is smaller than with one less.

    Where one leads, it deals out samples or updates, and not microbatches: any number is.
    """
    if spec.local_updates.is_led:
        return list(range(spec.workers.min, spec.workers.upper + 1))
    found: list[int] = []
    more: int | None = spec.workers.min
    while more is not None:
        found.append(more)
        more = next_useful(spec.num_microbatches, more, spec.workers.upper)
    return found


def name_of(strategy: Strategy) -> str:
    """As a spec says it."""
    if strategy.local != "none":
        return strategy.local
    if strategy.method != "none":
        return strategy.method
    if strategy.servers:
        return "server"
    return "auto" if strategy.algorithm == "direct" else strategy.algorithm


def _stands_for(spec: JobSpec, refused: Sequence[Refused], chosen: Option) -> Iterator[str]:
    """Where what the spec has chosen is no candidate, that something else is told."""
    wanted = spec.local_updates.method if spec.local_updates.is_on else spec.aggregation.name
    because = next((one.reason for one in refused if one.name == wanted), None)
    if because is not None:
        yield f"The spec has {wanted}, which is not predicted: {because}. What follows is for {chosen.name}."


def _strategy_of(spec: JobSpec, allowed: Sequence[Strategy]) -> Strategy:
    """The one that the spec has chosen."""
    return next((one for one in allowed if name_of(one) == spec.aggregation.name), allowed[0])


def _option(profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, workers: int, alone: float) -> Option:
    several = not spec.reproducible
    told = predict(profile, link, strategy, workers, spec.batch.global_size, spec.num_microbatches, several=several)
    return Option(
        name_of(strategy),
        workers,
        told.step_s,
        told.compute_s,
        told.exposed_s,
        told.codec_s,
        told.update_s,
        told.samples_per_s,
        told.samples_per_s / alone,
        sent_bytes(strategy, profile, workers, spec.batch.global_size / strategy.sync_every),
        _memory(profile, spec, strategy, workers),
        _binding(told),
        strategy.method == "none",
    )


def _memory(profile: Profile, spec: JobSpec, strategy: Strategy, workers: int) -> int:
    """State, gradients, partial sums, their mean, two results; what is kept, and the copies that are made of it."""
    if not profile.state_bytes:
        return 0
    vector = profile.element_bytes * profile.parameters
    mine = ceil(spec.num_microbatches / workers)
    partials = 1 if not spec.reproducible else mine.bit_length()
    kept = 0 if strategy.method in ("none", "fp16", "bf16") else 2
    if strategy.local != "none":
        travels = max(profile.state_bytes, vector)
        outer = {"diloco": 1, "streaming_diloco": 4}.get(strategy.local, 0)  # momentum; shared weights, a settlement's
        kept = travels + outer * vector  # the round's beginning
        served = 2 * (workers - 1) * vector if strategy.local in ("asynchronous", "synchronous") else 0  # to and fro
        if strategy.local == "synchronous":
            served += max(1, workers - 1 - strategy.backups) * vector  # an update's
        return profile.state_bytes + travels * (partials + 1 + 2 * (workers > 1)) + vector + kept + served
    return profile.state_bytes + vector * (1 + partials + 1 + 2 * (workers > 1) + kept)


def _binding(told: Prediction) -> str:
    name, share = told.binding
    return f"{share:.0%} of a step is {name}"


def _other_shares(
    profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, own: Sequence[Option]
) -> Iterator[str]:
    """Where another number of workers that do something for all would make a step much shorter."""
    found: list[tuple[Option, int]] = []
    for workers in (one.workers for one in own if one.workers > 1):
        if strategy.cut is not None:
            samples = spec.batch.global_size / strategy.sync_every
            cut = strategy.cut.with_best_keepers(profile, link, workers, samples)
            others = {cut.keepers: replace(strategy, cut=cut)}
        else:
            others = {count: replace(strategy, servers=count) for count in range(1, workers + 1) if strategy.servers}
        found += [(_option(profile, link, spec, one, workers, 1.0), count) for count, one in others.items()]
    fastest = min(own, key=lambda one: one.step_s)
    option, count = min(found, key=lambda one: one[0].step_s, default=(fastest, 0))
    if option.step_s * WORTH_IT < fastest.step_s:
        what = "with the layers behind the cut (local_updates.keepers)"
        if strategy.cut is None:
            what = "adding up for all (aggregation.servers)"
        yield (
            f"{option.workers} workers, {count} of them {what}, would be {fastest.step_s / option.step_s:.2g} times "
            "as fast."
        )


def _enough(own: Sequence[Option]) -> Option:
    """The largest number of workers that pays: on the average those that are added bring enough.

    The second may bring nothing, as where one of them computes for the others.
    """
    first = own[0].samples_per_s / own[0].workers
    chosen = own[0]
    for option in own[1:]:
        brings = (option.samples_per_s - chosen.samples_per_s) / (option.workers - chosen.workers)
        if brings >= PAYS * first:
            chosen = option
    return chosen


def _sentences(
    profile: Profile, link: Link, spec: JobSpec, chosen: Option, own: Sequence[Option], best: Sequence[Option]
) -> Iterator[str]:
    exchanged = PRETTY.get(chosen.name, f"gradients as {chosen.name}")
    steps = f"{1 / chosen.step_s:.3g} steps a second"
    if chosen.workers == 1:
        yield f"One worker: {steps}; {chosen.binding}."
    else:
        yield (
            f"{chosen.workers} workers with {exchanged}: {steps}, {chosen.speedup:.2g} times one worker; "
            f"{chosen.binding}."
        )
    beyond = next((one for one in own if one.workers > chosen.workers), None)
    if beyond is not None:
        yield (
            f"With {beyond.workers} it would be {beyond.speedup:.2g} times: a worker more would bring less than half "
            "of what the first ones bring."
        )
    limit = best_workers(
        chosen.compute_s * chosen.workers,
        profile.element_bytes * profile.parameters,
        link.bytes_per_s,
        link.latency_s,
    )
    if limit <= 1:
        yield "The link carries gradients more slowly than one worker computes them: whole gradients do not pay on it."
    faster = [one for one in best if not one.is_whole and one.step_s * WORTH_IT < chosen.step_s]
    if faster:
        told = faster[0]
        yield (
            f"{told.name} with {told.workers} workers would be {chosen.step_s / told.step_s:.2g} times as fast, but "
            "leaves out a part of each gradient: compare loss curves at equal samples before you rely on it."
        )
    if chosen.exposed_s > chosen.compute_s and not spec.local_updates.is_on:
        if spec.reproducible:
            yield "reproducible: false would allow strategies that send less."
        yield "local_updates would exchange once in many updates; reproducible: true holds with them."
