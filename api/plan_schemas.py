"""Shapes of plans, as the OpenAPI document shows them."""

from __future__ import annotations

from pydantic import BaseModel


class PlanOption(BaseModel):
    """A strategy with a number of workers."""

    name: str
    """As `aggregation` of a spec says it: an algorithm, or a compression method."""
    workers: int
    step_s: float
    compute_s: float
    exposed_s: float
    """Of the exchange, what the backward pass does not hide."""
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
    is_whole: bool
    """Whether nothing of a gradient is left out or rounded."""


class PlanRefusal(BaseModel):
    """A strategy that is no candidate."""

    name: str
    reason: str


class Plan(BaseModel):
    """What to expect of numbers of workers and strategies."""

    recommended: PlanOption
    sentences: list[str]
    best: list[PlanOption]
    """The fastest first, one of each strategy."""
    by_workers: list[PlanOption]
    """The strategy of the spec, with each number of workers that a step uses well."""
    refused: list[PlanRefusal]
