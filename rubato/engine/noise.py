"""The noise of a job's gradients, and what follows from it for the learning rate.

Each worker adds the square of the norm of each microbatch's gradient to the vector that is summed anyway
(`FlatLayout`), so that all know the same of all microbatches; with `reproducible: true` with the same bits, whatever
the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from rubato.engine.flat import FlatLayout
from rubato.strategies.batch_rules import Noise, gain, keep_of, warmed
from rubato.wire.spec import JobSpec

REGISTERED = "rubato.noise"
"""The name of what is known of the noise, in the training state."""
RATE = "rubato.rate"
"""Likewise, of when a rule for the learning rate began."""


class NoiseWatch:
    """How noisy the gradients are, measured now and then."""

    def __init__(self, spec: JobSpec) -> None:
        self._every = spec.batch.noise_every
        self._base = spec.base_batch
        self.noise = Noise()

    def is_due(self, step: int) -> bool:
        """Whether it is measured in this step; equal on all workers."""
        return self._every > 0 and step % self._every == 0

    def take(self, flat: FlatLayout, mean_L: torch.Tensor, unit: float, samples: int, scale: float) -> None:
        """Look at a step's gradient.

        Args:
            mean_L: the mean over the step.
            unit: samples of what counts 1.
            samples: of the step.
            scale: of a GradScaler.
        """
        squares, inverse_sizes, passes = flat.notes_of(mean_L)
        if passes <= 0 or inverse_sizes <= 0 or not math.isfinite(squares):
            return  # also where the square of a huge norm is beyond the vector's type
        small = unit * passes / inverse_sizes
        square = float(torch.linalg.vector_norm(mean_L[: flat.gradients], dtype=torch.float64)) ** 2 / scale**2
        keep = keep_of(samples * self._every, self._base)
        self.noise = self.noise.after([squares / passes / scale**2], square, small, samples, keep=keep)

    def told(self, step: int) -> dict[str, float]:
        """For the row of a step in which it was measured."""
        scale = self.noise.scale if self.is_due(step) else None
        return {} if scale is None else {"noise_scale": scale}

    def state_dict(self) -> dict[str, Any]:
        """What is known."""
        return {"noise": [self.noise.gradient_sqr, self.noise.variance, self.noise.weight]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over."""
        self.noise = Noise(*state["noise"])


class LearningRate:
    """Multiplies the learning rates of the program's optimizers while they step; the program sees its own ones.

    Args:    step: the present one.
    """

    def __init__(self, spec: JobSpec, watch: NoiseWatch | None, step: Callable[[], int]) -> None:
        self._terms, self._rule = asdict(spec.lr_scaling), spec.lr_scaling.rule
        self._batch, self._base = spec.batch.global_size, spec.base_batch
        self._watch, self._step = watch, step
        self._since: int | None = None
        """The first step of these terms."""
        self._before = 1.0
        """The factor until then."""

    def begin(self) -> None:
        """Training begins, or goes on: with the present step, unless what was loaded had these terms already."""
        if self._since is None:
            self._since = self._step()

    def factor(self, step: int) -> float:
        """At this step."""
        noise = self._watch.noise if self._watch is not None else Noise()
        since = step if self._since is None else self._since
        after = gain(self._rule, self._batch, self._base, noise)
        return warmed(self._before, after, step - since, self._terms["warmup_steps"])

    def state_dict(self) -> dict[str, Any]:
        """Since when these terms are in force, and the present factor, which others would begin from."""
        step = self._step()
        known = {"terms": self._terms, "since": self._since, "before": self._before}
        return {**known, "step": step, "factor": self.factor(step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over; where it was of other terms, these begin with its step."""
        if state["terms"] == self._terms:
            self._since, self._before = state["since"], state["before"]
        else:
            self._since, self._before = state["step"], state["factor"]

    def attach(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """From here on."""
        for optimizer in optimizers:
            own: list[Any] = []

            def before(one: torch.optim.Optimizer, *_: Any, own: list[Any] = own) -> None:
                own[:] = [group["lr"] for group in one.param_groups]
                for group in one.param_groups:
                    group["lr"] = group["lr"] * self.factor(self._step())

            def after(one: torch.optim.Optimizer, *_: Any, own: list[Any] = own) -> None:
                for group, rate in zip(one.param_groups, own, strict=True):
                    group["lr"] = rate

            optimizer.register_step_pre_hook(before)
            handle = optimizer.register_step_post_hook(after)
            hooks: Any = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(handle.id, last=False)  # the program's own see its own rates, and may change them

    def told(self, step: int) -> dict[str, float]:
        """For the row of a step."""
        return {"lr_factor": self.factor(step)}
