"""A strategy with a number of workers: what a step of it takes, sends and holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rubato.planner.links import Link
from rubato.planner.methods import Strategy, sent_bytes
from rubato.planner.predict import Prediction, Saves, predict, samples_of
from rubato.planner.profile import Profile
from rubato.wire.spec import JobSpec


@dataclass(frozen=True)
class Option:
    """A strategy with a number of workers."""

    name: str
    """As a spec says it: an algorithm or a compression method of `aggregation`, or a method of `local_updates`."""
    workers: int
    step_s: float
    compute_s: float
    exposed_s: float
    """Of exchanges, also of what is settled before checkpoints, what computation does not hide."""
    codec_s: float
    update_s: float
    samples_per_s: float
    speedup: float
    """Against one worker that compresses nothing."""
    sent_bytes: float
    """By the busiest worker, in a step."""
    memory_bytes: int
    """Of one worker, without what the program takes, nor passes where the profile does not say what they keep; 0: it
    does not say anything of memory."""
    binding: str
    """What the most of a step is spent on, in words."""
    is_whole: bool
    """Whether nothing of a gradient is left out or rounded."""

    @property
    def binds(self) -> str:
        """The same as `binding`, short enough for a table: `62% computation`."""
        return self.binding.replace(" of a step is ", " ")


@dataclass(frozen=True)
class Candidate:
    """A strategy with each number of workers that has the memory for it, ascending."""

    strategy: Strategy
    options: tuple[Option, ...]
    enough: Option
    """With as many workers as pay."""

    @property
    def name(self) -> str:
        """As a spec says it."""
        return self.enough.name

    @property
    def fastest(self) -> Option:
        """Whether all of its workers pay or not."""
        return max(self.options, key=lambda one: one.samples_per_s)


def name_of(strategy: Strategy) -> str:
    """As a spec says it."""
    if strategy.local != "none":
        return strategy.local
    if strategy.method != "none":
        return strategy.method
    if strategy.servers:
        return "server"
    return "auto" if strategy.algorithm == "direct" else strategy.algorithm


def saves_of(spec: JobSpec) -> Saves:
    """How often a job saves; where it finds that out itself, as seldom as it may."""
    told = spec.checkpoint
    if told.every_steps is not None:
        return Saves(every_steps=told.every_steps)
    return Saves(told.max_interval if told.every == "auto" else told.every)


def option_of(
    profile: Profile, link: Link, spec: JobSpec, strategy: Strategy, workers: int, alone: float = 1.0
) -> Option:
    """What is predicted of it.

    Args:    alone: samples a second of one worker that compresses nothing.
    """
    batch, several = spec.batch.global_size, not spec.reproducible
    saves = saves_of(spec)
    told = predict(profile, link, strategy, workers, batch, spec.num_microbatches, several=several, saves=saves)
    return Option(
        name_of(strategy),
        workers,
        told.step_s,
        told.compute_s,
        told.exposed_s + told.settling_s,
        told.codec_s,
        told.update_s,
        told.samples_per_s,
        told.samples_per_s / alone,
        sent_bytes(strategy, profile, workers, batch / strategy.sync_every),
        memory_of(profile, spec, strategy, workers),
        _binding(told),
        strategy.method == "none",
    )


def memory_of(profile: Profile, spec: JobSpec, strategy: Strategy, workers: int) -> int:
    """Bytes that one worker has for state, gradients, partial sums, their mean, two results; for what is kept of
    gradients, and by a pass for its way back.

    What a compressor keeps is there twice: as it is, and as it is to be if the step counts. Where layers are separated,
    a pass is taken to keep what all layers do. 0: the profile does not say what the state takes.
    """
    if not profile.state_bytes:
        return 0
    return held_bytes(profile, spec, strategy, workers) + profile.kept_bytes(pass_of(spec, strategy, workers))


def pass_of(spec: JobSpec, strategy: Strategy, workers: int) -> int:
    """Samples of the largest pass that a worker makes."""
    batch, several = spec.batch.global_size, not spec.reproducible
    return ceil(samples_of(strategy, workers, batch, spec.num_microbatches, several=several) - 1e-9)


def held_bytes(profile: Profile, spec: JobSpec, strategy: Strategy, workers: int) -> int:
    """What a worker has of it whatever the samples of a pass."""
    vector = profile.vector_bytes
    mine = ceil(spec.num_microbatches / workers)
    partials = 1 if not spec.reproducible else mine.bit_length()
    if strategy.local != "none":
        travels = profile.closing_bytes
        outer = {"diloco": 1, "streaming_diloco": 4}.get(strategy.local, 0)  # momentum; shared weights, a settlement's
        kept = max(profile.state_bytes, vector) + outer * vector  # the round's beginning
        served = 2 * (workers - 1) * vector if strategy.local in ("asynchronous", "synchronous") else 0  # to and fro
        if strategy.local == "synchronous":
            served += max(1, workers - 1 - strategy.backups) * vector  # an update's
        return profile.state_bytes + travels * (partials + 1 + 2 * (workers > 1)) + vector + kept + served
    return profile.state_bytes + vector * (1 + partials + 1 + 2 * (workers > 1) + 2 * strategy.kept_parts)


def _binding(told: Prediction) -> str:
    name, share = told.binding
    return f"{share:.0%} of a step is {name}"
