"""Which number of workers and which strategy, and what stands against the others. Pure.

Every candidate is predicted: the numbers of workers that a step uses well, and of the strategies those that the spec
allows and whose memory the workers have. Recommended is the spec's own strategy with as many workers as pay; where that
exchanges gradients whole or rounded, another one that exchanges them whole is, if it is much faster: but for rounding
both learn the same. A faster one that changes what is learned is told, not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import get_args

from rubato.errors import Finding, SpecError
from rubato.planner import advice
from rubato.planner.batches import Batch, Speed, compare, recommended, sentences
from rubato.planner.counts import some_of, useful_counts
from rubato.planner.fitting import cut_finer, too_large
from rubato.planner.links import Link
from rubato.planner.methods import Strategy
from rubato.planner.options import Candidate, Option, name_of, option_of
from rubato.planner.profile import Profile
from rubato.planner.separated import Cut, cut_of
from rubato.strategies.modules import modules_by_size
from rubato.wire.aggregation import KEEPING_NOTHING, Method
from rubato.wire.local_updates import LocalMethod
from rubato.wire.spec import JobSpec
from rubato.wire.units import format_bytes

METHODS: tuple[Method, ...] = ("fp16", "bf16", "powersgd", "topk", "gtopk", "onebit", "sketch", "sketched_sgd")
PAYS = 0.5
"""A worker more must bring at least this share of what the first ones bring, as with `autoscale: goodput`."""


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
    options: tuple[Option, ...]
    """Each strategy with each number of workers that was looked at; the fastest strategy first."""
    refused: tuple[Refused, ...]
    batches: tuple[Batch, ...] = ()
    """With a noise scale: other global batches beside the spec's."""
    recommended_batch: Batch | None = None
    """With a noise scale: of these."""


def plan(
    profile: Profile, link: Link, spec: JobSpec, noise_scale: float | None = None, changed: Sequence[str] = ()
) -> Plan:
    """What would be best for a job on workers of this kind, with links of this kind between them.

    Args:
        noise_scale: of its gradients, in samples, as a job like it has charted; None: batches are not compared.
        changed: files of the program that are not as they were profiled, as far as they are at hand.
    Raises:  SpecError: no strategy fits into the memory that the spec gives a worker, or there is nothing to separate.
    """
    allowed, refused = candidates(spec, profile)
    useful = useful_counts(spec)
    counts = some_of(useful)
    alone = option_of(profile, link, spec, allowed[0], 1).samples_per_s
    tried: list[Candidate] = []
    for one in allowed:
        found = [option_of(profile, link, spec, one, workers, alone) for workers in counts]
        fitting = [option for option in found if fits(profile, spec, option)]
        if fitting:
            tried.append(Candidate(one, tuple(fitting), _enough(fitting)))
        else:
            refused.append(Refused(name_of(one), too_large(profile, spec, one, found)))
    if not tried:
        raise SpecError([Finding("resources_per_worker.memory", refused[-1].reason)])
    ranked = sorted(tried, key=lambda one: one.fastest.step_s)
    best = [one.fastest for one in ranked]
    alike = [one for one in best if one.workers == 1 and one.is_whole]
    best = [one for one in best if one not in alike[1:]]  # where nothing is exchanged or compressed all are the same
    own = _own_of(spec, tried)
    chosen = _recommended(spec, own, tried)
    compared: tuple[Batch, ...] = ()
    told = [*advice.of_profile(profile, spec, changed), *_stands_for(spec, refused, chosen)]
    told += advice.of_options(profile, link, spec, chosen, own, best)
    told += _left_out(useful, counts, chosen.options, spec)
    if noise_scale is not None:
        compared = _compare(profile, link, spec, chosen.strategy, noise_scale)
        told += sentences(compared, spec.batch.global_size, noise_scale, scales_rates=not spec.local_updates.is_on)
    return Plan(
        chosen.enough,
        tuple(told),
        tuple(best),
        chosen.options,
        tuple(option for one in ranked for option in one.options),
        tuple(refused),
        compared,
        recommended(compared) if compared else None,
    )


def fits(profile: Profile, spec: JobSpec, option: Option) -> bool:
    """Whether a worker has that memory; of a GPU's nothing is known."""
    limit = spec.resources_per_worker.memory
    return limit is None or profile.device != "cpu" or option.memory_bytes <= limit


def _left_out(useful: Sequence[int], counts: Sequence[int], own: Sequence[Option], spec: JobSpec) -> Iterator[str]:
    """Numbers of workers that were not looked at, and those that were but do not fit."""
    if len(counts) < len(useful):
        yield (
            f"Of the {len(useful)} numbers of workers from {useful[0]} to {useful[-1]} that a step uses well "
            f"{len(counts)} were looked at."
        )
    large = [str(count) for count in counts if count not in {option.workers for option in own}]
    if large:
        yield (
            f"With {', '.join(large)} workers {own[0].name} does not fit into resources_per_worker.memory, "
            f"{format_bytes(spec.resources_per_worker.memory or 0)}."
        )


def _compare(profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, noise_scale: float) -> tuple[Batch, ...]:
    """Other batches, each with the workers that pay for it; cut finer, where else no worker could hold a pass."""

    def fitting(other: JobSpec) -> list[Option]:
        one = replace(strategy, tree=other.num_microbatches if strategy.tree else 0)
        found = [option_of(profile, link, other, one, workers) for workers in some_of(useful_counts(other))]
        return [option for option in found if fits(profile, other, option)]

    def speed(size: int) -> Speed | None:
        other = replace(spec, batch=replace(spec.batch, global_size=size, num_microbatches=spec.num_microbatches))
        found = fitting(other)
        finer = None if found else cut_finer(profile, other, strategy, some_of(useful_counts(other)))
        if finer is not None:
            other, found = finer, fitting(finer)
        if not found:
            return None
        best = _enough(found)
        of_update = size * _share_of_update(other, best.workers)
        held = best.memory_bytes if profile.activation_bytes else 0
        return Speed(best.workers, other.num_microbatches, best.samples_per_s, of_update, held)

    pieces = spec.num_microbatches * strategy.sync_every
    return compare(spec.batch.global_size, pieces, noise_scale, speed, are_equal=spec.local_updates.is_on)


def _share_of_update(spec: JobSpec, workers: int) -> float:
    """Of the samples of a step, those whose mean gradient makes one update: of each replica, where they are several."""
    local, count = spec.local_updates, spec.num_microbatches
    if not local.is_on:
        return 1.0
    replica = 1.0
    if not local.is_led:
        replica = (1 if spec.reproducible else ceil(count / workers)) / count
    return replica / local.sync_every


def candidates(spec: JobSpec, profile: Profile) -> tuple[list[Strategy], list[Refused]]:
    """Strategies that the spec allows, the one it has by default first; and the others."""
    told, local = spec.aggregation.compression, spec.local_updates
    base = Strategy(
        density=told.density,
        rank=told.rank,
        rows=told.rows,
        columns=None if told.columns == "auto" else told.columns,
        momentum=told.momentum > 0,
        tree=spec.num_microbatches if spec.reproducible else 0,
    )
    algorithm = spec.aggregation.algorithm
    if told.method == "sketch" and algorithm != "auto":
        base = replace(base, sketch_algorithm=algorithm)
    cut = _cut_of(spec, profile)
    if local.cut is not None and cut is None:
        raise SpecError([Finding("local_updates.cut", _wrong(profile, local.cut))])
    is_missing = cut is not None and not (cut.inputs and cut.outputs)
    missing = (
        "the profile does not tell what goes over the cut: `rubato profile` measures it anew" if is_missing else ""
    )
    if not missing:
        base = replace(base, local=local.method, sync_every=local.sync_every, cut=cut, backups=local.backups)
        base = replace(base, fragments=local.fragments, delay=local.delay)
    servers = spec.aggregation.servers
    allowed, refused = [base], []
    for pattern in ("ring", "tree", "halving_doubling", "native"):
        allowed.append(replace(base, algorithm=pattern))
    allowed.append(replace(base, servers=servers))
    for method in METHODS:
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
    unknown = [one for one in allowed if one.method != "none" and one.method not in profile.codec_s]
    because = "the profile does not say what its compression takes: `rubato profile` measures it anew"
    refused += [Refused(one.method, because) for one in unknown]
    return [one for one in allowed if one not in unknown], refused


def _cut_of(spec: JobSpec, profile: Profile) -> Cut | None:
    local = spec.local_updates
    if local.cut is None:
        return None
    return cut_of(profile, local.cut, local.cut_format, local.keepers, local.front_format, spec.num_microbatches)


def _wrong(profile: Profile, path: str) -> str:
    """Why layers cannot be separated there."""
    names = [layer.name for layer in profile.layers]
    if any(f"{name}.".startswith(f"{path}.") or f".{name}.".find(f".{path}.") > 0 for name in names):
        return f"no module outside of {path!r} has parameters: take a part of it, such as the one with most of them"
    known = modules_by_size((layer.name, layer.parameters) for layer in profile.layers)
    return f"the profile has no module {path!r} with parameters; it has {known}: take the one with most of them"


def _stands_for(spec: JobSpec, refused: Sequence[Refused], chosen: Candidate) -> Iterator[str]:
    """Where what the spec has chosen is no candidate, that something else is told."""
    wanted = _name_in(spec)
    because = next((one.reason for one in refused if one.name == wanted), None)
    if because is not None:
        yield f"The spec has {wanted}, which is not predicted: {because}. What follows is for {chosen.name}."


def _name_in(spec: JobSpec) -> str:
    """Of the strategy that the spec has chosen."""
    return spec.local_updates.method if spec.local_updates.is_on else spec.aggregation.name


def _own_of(spec: JobSpec, tried: Sequence[Candidate]) -> Candidate:
    """The one that the spec has chosen, or stands for it."""
    return next((one for one in tried if one.name == _name_in(spec)), tried[0])


def _recommended(spec: JobSpec, own: Candidate, tried: Sequence[Candidate]) -> Candidate:
    """The spec's own, or of those that exchange gradients whole the fastest, if that is much faster."""
    if own.name != _name_in(spec) or own.strategy.method not in KEEPING_NOTHING:
        return own
    whole = [one for one in tried if one.strategy.method == "none"]
    fastest = min(whole, key=lambda one: one.enough.step_s, default=own)
    return fastest if fastest.enough.step_s * advice.WORTH_IT <= own.enough.step_s else own


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
