"""What a plan says in words: why these workers, what binds, and what would be faster. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from rubato.planner.counts import doubled
from rubato.planner.lemmas import best_workers, efficiency_of, servers_for, workers_for
from rubato.planner.links import Link
from rubato.planner.measured import codec_settings
from rubato.planner.methods import Strategy, settlement_s
from rubato.planner.options import Candidate, Option, option_of, saves_of
from rubato.planner.profile import Profile, program_of
from rubato.wire.aggregation import KEEPING_NOTHING
from rubato.wire.spec import JobSpec
from rubato.wire.units import format_seconds, three_digits

WORTH_IT = 1.2
"""So many times as fast must be another strategy than the spec's, to be recommended, or told where it changes what is
learned."""
NOTICED = 1.02
"""So many times as fast is noticed."""
UNEVEN = 0.2
"""Of the time of a pass: what it varies by, to be told."""
HALF = 0.5
"""Of the workers' time: less of it should not be lost."""
TOLD = 0.1
"""Settling is told of where it takes this share of the time."""
MOST_TOLD = 3
"""Of the settings, or files, that are not as they were profiled; the others are counted."""
SHORT = 40
"""Characters of a value that are told."""
OF_NO_PASS = {
    *("steps", "epochs", "max_steps", "num_epochs", "evaluate_every", "seed"),
    *("lr", "learning_rate", "decay", "weight_decay", "warmup_steps"),
}
"""Settings of recipes, and such names in other programs, that a pass takes as long with whatever they are; who profiles
a short program sets some of them for that alone."""
PRETTY = {
    "auto": "whole gradients, each worker adding up a part",
    "ring": "whole gradients, over a ring",
    "tree": "whole gradients, over a reduction tree",
    "halving_doubling": "whole gradients, by halving and doubling",
    "native": "whole gradients, by the all-reduce of gloo or NCCL",
    "server": "whole gradients, added up by some for all",
    "local_sgd": "the mean of the weights behind the updates of a step",
    "diloco": "an outer update behind the updates of a step",
    "streaming_diloco": "an outer update of a fragment behind the updates of a step",
    "synchronous": "a server that makes updates when gradients are there, but for the slowest",
    "asynchronous": "a server that makes updates as gradients come",
    "layer_separation": "the layers behind the cut on some of them",
}


def of_profile(profile: Profile, spec: JobSpec, changed: Sequence[str]) -> Iterator[str]:
    """Where the profile is of another program than the spec's, or of this one as it was.

    Args:    changed: files that are not as they were profiled.
    """
    if profile.program and profile.program != program_of(spec):
        yield f"The profile is of {profile.program}, and this is {program_of(spec)}: `rubato profile` measures that."
        return
    if profile.config is not None:
        yield from _of_config(profile.config, spec.config)
    if changed:
        more = f" and {len(changed) - MOST_TOLD} more" if len(changed) > MOST_TOLD else ""
        yield (
            f"The program has changed since it was profiled ({', '.join(changed[:MOST_TOLD])}{more}): `rubato profile` "
            "measures it anew."
        )


def _of_config(measured: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    then, now = dict(_settings(measured)), dict(_settings(config))
    differ = [
        name
        for name in {**then, **now}
        if then.get(name) != now.get(name) and name.rpartition(".")[2] not in OF_NO_PASS
    ]
    if differ:
        was, has = (
            ", ".join(_setting(name, settings.get(name)) for name in differ[:MOST_TOLD]) for settings in (then, now)
        )
        more = f" ({len(differ) - MOST_TOLD} more differ)" if len(differ) > MOST_TOLD else ""
        yield f"The profile was measured with {was}, and this spec has {has}{more}: `rubato profile` measures it anew."


def _settings(config: Mapping[str, Any], path: str = "config") -> Iterator[tuple[str, Any]]:
    """By path, each with its value."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def _setting(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    text = json.dumps(value, ensure_ascii=False)
    return f"{name} {text if len(text) <= SHORT else f'{text[: SHORT - 3]}...'}"


def of_options(
    profile: Profile,
    link: Link,
    spec: JobSpec,
    recommended: Candidate,
    own: Candidate,
    best: Sequence[Option],
) -> Iterator[str]:
    """Sentences on the options of a spec.

    Args:
        own: the strategy of the spec.
        best: the fastest of each strategy.
    """
    strategy, chosen = recommended.strategy, recommended.enough
    yield _of_chosen(chosen)
    if recommended.name != own.name:
        yield _of_another(spec, recommended, own.enough)
    yield from _of_more(chosen, recommended.options)
    yield from _of_settling(profile, link, spec, strategy, chosen)
    yield from _of_settings(profile, spec, strategy)
    yield from _of_memory(profile)
    yield from _of_spread(profile, chosen)
    limit = best_workers(
        chosen.compute_s * chosen.workers,
        profile.vector_bytes,
        1 / link.moved_s(1.0),
        link.latency_s,
    )
    if limit <= 1 and not spec.local_updates.is_on:
        yield "The link carries gradients more slowly than one worker computes them: whole gradients do not pay on it."
    yield from _of_whole(recommended, best)
    yield from _of_faster(spec, recommended, best)
    yield from _of_other_shares(profile, link, spec, own, is_recommended=recommended.name == own.name)
    if strategy.local == "streaming_diloco":
        yield from _of_delay(profile, link, spec, recommended)


def _of_chosen(chosen: Option) -> str:
    exchanged = PRETTY.get(chosen.name, f"gradients as {chosen.name}")
    steps = f"{three_digits(1 / chosen.step_s)} steps a second"
    if chosen.workers == 1:
        return f"One worker: {steps}; {chosen.binding}."
    return (
        f"{chosen.workers} workers with {exchanged}: {steps}, {chosen.speedup:.2g} times one worker; {chosen.binding}."
    )


def _of_more(chosen: Option, options: Sequence[Option]) -> Iterator[str]:
    """What more workers would bring."""
    beyond = next((one for one in options if one.workers > chosen.workers), None)
    if beyond is not None:
        more = (
            "it would be slower"
            if beyond.speedup < chosen.speedup
            else "a worker more would bring less than half of what the first ones bring"
        )
        yield f"With {beyond.workers} it would be {beyond.speedup:.2g} times one: {more}."
    gained = chosen.speedup / chosen.workers
    if chosen.speedup > 1 and gained < 1:
        overhead = (1 - gained) / (chosen.speedup - 1)
        yield (
            f"So {efficiency_of(chosen.workers, overhead):.0%} of their time is gained; at least half of it with up to "
            f"{workers_for(HALF, overhead):.0f} workers, if what does not shrink with them stays (Amdahl's law)."
        )


def _of_another(spec: JobSpec, recommended: Candidate, own: Option) -> str:
    """That a strategy is recommended which is not the spec's, and how a spec has it."""
    chosen, servers = recommended.enough, recommended.strategy.servers
    said = f"aggregation.algorithm: {chosen.name}" + (f" and aggregation.servers: {servers}" if servers else "")
    unwanted = [] if own.is_whole else ["aggregation.compression"]
    if spec.aggregation.servers > 1 and not servers:
        unwanted.append("aggregation.servers")
    leave = f", and leave {' and '.join(unwanted)} out" if unwanted else ""
    return (
        f"The spec has {own.name}, and {_workers(own)} would be recommended for it: {chosen.name} with "
        f"{_workers(chosen)} is {_times(own, chosen)} times as fast, and learns the same but for rounding. Say "
        f"{said}{leave}."
    )


def _of_whole(recommended: Candidate, best: Sequence[Option]) -> Iterator[str]:
    """Where leaving out a part of each gradient costs more than it saves, each with as many workers as is fastest."""
    least = recommended.fastest
    whole = next((one for one in best if one.is_whole), least)
    leaves_out = not least.is_whole and least.name not in KEEPING_NOTHING
    if leaves_out and whole.step_s * WORTH_IT < least.step_s:
        yield (
            f"{whole.name} with {_workers(whole)} would be {_times(least, whole)} times as fast, with whole gradients, "
            f"as {least.name} with {_workers(least)}: {least.name} costs more than it saves here."
        )


def _workers(option: Option) -> str:
    return "one worker" if option.workers == 1 else f"{option.workers} workers"


def _of_settling(profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, chosen: Option) -> Iterator[str]:
    """Where checkpoints cost an exchange of all that is kept, and that is much."""
    settled_s, saves = settlement_s(strategy, profile, chosen.workers, link), saves_of(spec)
    between_s = min(saves.every_s, saves.every_steps * chosen.step_s)
    if settled_s > TOLD * between_s:
        yield (
            f"Each checkpoint has all workers tell each other what they keep, whole: {settled_s:.2g} s of every "
            f"{max(between_s, settled_s):.2g} s. Save more seldom (checkpoint.every)."
        )


def _of_settings(profile: Profile, spec: JobSpec, strategy: Strategy) -> Iterator[str]:
    """Where the profile has measured compression as another spec has it."""
    wanted, measured = codec_settings(spec.aggregation.compression), profile.codec_settings
    others = [f"{name} {measured[name]:g}" for name, value in wanted.items() if measured.get(name, value) != value]
    if others and not spec.reproducible and strategy.local == "none":
        yield (
            f"What compression takes was measured with {', '.join(others)}, not as this spec has it: `rubato profile` "
            "measures it anew."
        )


def _of_memory(profile: Profile) -> Iterator[str]:
    """Where the profile is of before passes told what they keep."""
    if profile.state_bytes and not profile.activation_bytes:
        yield (
            "The profile does not tell what a pass keeps for its way back, so memory is predicted without it: `rubato "
            "profile` measures it anew."
        )


def _of_spread(profile: Profile, chosen: Option) -> Iterator[str]:
    """Where passes took so unequally long that this decides how many workers pay."""
    if profile.spread > UNEVEN:
        yield (
            f"Passes varied by {profile.spread:.0%} when they were profiled, and in a step all wait for the slowest: "
            "where the machine did other things meanwhile, `rubato profile` measures anew, and more workers may pay."
        )


def _of_faster(spec: JobSpec, recommended: Candidate, best: Sequence[Option]) -> Iterator[str]:
    chosen = recommended.enough
    several = [one for one in best if one.workers > 1 and not one.is_whole and one.name != chosen.name]
    rounding = [one for one in several if one.name in KEEPING_NOTHING]
    leaving = [one for one in several if one.name not in KEEPING_NOTHING]
    step_s = recommended.fastest.step_s  # what more workers bring is not what another strategy brings
    for price, faster in (
        ("rounds gradients before they are added up", rounding),
        ("leaves out a part of each gradient", leaving),
    ):
        if faster and faster[0].step_s * WORTH_IT < step_s:
            told = faster[0]
            step_s = told.step_s
            yield (
                f"{told.name} with {told.workers} workers would be {_times(chosen, told)} times as fast, but {price}: "
                "compare loss curves at equal samples before you rely on it."
            )
    if chosen.exposed_s > chosen.compute_s and not spec.local_updates.is_on:
        if spec.reproducible:
            yield "reproducible: false would allow strategies that send less."
        yield "local_updates would exchange once in many updates; reproducible: true holds with local_sgd and diloco."


def _of_other_shares(
    profile: Profile, link: Link, spec: JobSpec, own: Candidate, *, is_recommended: bool
) -> Iterator[str]:
    """Where another number of workers that do something for all would make a step much shorter."""
    strategy = own.strategy
    found: list[tuple[Option, int]] = []
    for one in (one for one in own.options if one.workers > 1):
        if strategy.cut is not None:
            samples = spec.batch.global_size / strategy.sync_every
            cut = strategy.cut.with_best_keepers(profile, link, one.workers, samples)
            others = {cut.keepers: replace(strategy, cut=cut)}
        elif strategy.servers:
            others = {count: replace(strategy, servers=count) for count in _servers(profile, link, one)}
        else:
            return
        found += [(option_of(profile, link, spec, other, one.workers), count) for count, other in others.items()]
    fastest = own.fastest
    option, count = min(found, key=lambda one: one[0].step_s, default=(fastest, 0))
    if option.step_s * WORTH_IT < fastest.step_s:
        what = "with the layers behind the cut (local_updates.keepers)"
        if strategy.cut is None:
            what = "adding up for all (aggregation.servers)"
        than = "" if is_recommended else " as what the spec has"
        times = _times(fastest, option)
        yield f"{option.workers} workers, {count} of them {what}, would be {times} times as fast{than}."
    if strategy.servers and option.workers > 1:
        enough = servers_for(profile.vector_bytes, option.workers, 1 / link.moved_s(1.0), option.compute_s)
        short = f", more than the {option.workers} workers," if enough > option.workers else ""
        yield f"{enough} servers{short} would take no longer to add up than {option.workers} workers to compute."


def _of_delay(profile: Profile, link: Link, spec: JobSpec, recommended: Candidate) -> Iterator[str]:
    """How long a fragment travels, and how many updates would hide it; where one worker is enough, of several."""
    strategy, workers = recommended.strategy, recommended.enough.workers
    if workers == 1:
        several = [one for one in recommended.options if one.workers > 1]
        if not several:
            return
        workers = min(several, key=lambda one: one.step_s).workers
    at_end = option_of(profile, link, spec, replace(strategy, delay=0), workers)
    update_s = (at_end.step_s - at_end.exposed_s) / strategy.sync_every
    enough = min(ceil(at_end.exposed_s / update_s), strategy.sync_every - 1)
    delayed = option_of(profile, link, spec, replace(strategy, delay=enough), workers)
    told = (
        f"The exchange of a fragment takes {format_seconds(at_end.exposed_s)}, and an update {format_seconds(update_s)}"
    )
    told += f" with {workers} workers: " if workers != recommended.enough.workers else ": "
    times = at_end.step_s / delayed.step_s
    if times < NOTICED:
        yield told + "a delay, which has labels of its own, would save next to nothing (local_updates.delay)."
    else:
        yield told + f"local_updates.delay: {enough} would make a step {times:.2g} times as fast as none."


def _times(one: Option, faster: Option) -> str:
    return f"{one.step_s / faster.step_s:.2g}"


def _servers(profile: Profile, link: Link, option: Option) -> list[int]:
    """How many of the workers may add up: powers of two, all, and as many as hide behind the computation."""
    size = profile.vector_bytes
    enough = servers_for(size, option.workers, 1 / link.moved_s(1.0), option.compute_s)
    return sorted({*doubled(option.workers), min(enough, option.workers)})
