"""Microbatches that train by themselves for a while: what a pass over one is where a spec has `local_updates`.

round      one step of the job. All parameters and the optimizers' state are the same on all workers when it begins
replica    what a pass over a microbatch trains: H updates of its own, each of a piece of the microbatch, from the
           round's beginning. Its gradient is how far it came, d = (parameters at the beginning) - (its own)
exchange   as of any step: the mean of all d, and the mean of what the optimizers keep, as buffers travel
outer      all take the mean d for a gradient: of plain descent by 1 (the mean of the weights), or of Nesterov's

A replica belongs to a microbatch and not to a worker. So the bits do not depend on who trained which, workers come and
go between rounds, and a replica that was lost with its worker is trained again by another from the same beginning.

The optimizers' state is averaged as the weights are: each replica begins with what all have learned of the gradients'
size. In the first round it begins without any, as a new optimizer does.
Memory: parameters once more for the beginning, and once for the outer momentum; the optimizers' state once more, to
begin the next replica with; and the exchange holds it beside the gradients.
Source: Stich 2019, arXiv:1805.09767 (local SGD); Douillard et al. 2023, arXiv:2311.08105 (DiLoCo); Cheng and Glasgow
2025, arXiv:2409.13155 (averaging Adam's moments).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rubato.engine.reduction import is_finite
from rubato.engine.state import Place, TrainingState
from rubato.errors import ModelError, NonFiniteGradient, SpecMismatch
from rubato.strategies.local_updates import Outer
from rubato.wire.spec import JobSpec

NO_GRADIENT = (
    "a batch left no gradient: call step.backward(loss) for each, with a loss that depends on the prepared model's "
    "parameters"
)
REGISTERED = "rubato.outer"
"""The name of what the outer optimizer keeps, in the training state."""


@dataclass(frozen=True, eq=False)
class OptimizerPlace:
    """A place of an optimizer's state; like a buffer, but that it may be empty until the first update."""

    name: str
    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    key: str
    own: torch.Tensor
    """Its shape, type and strides: without memory."""
    device: torch.device
    is_value = True
    """Squares of gradients stay what they are, and not less than 0, when they are averaged themselves."""

    @property
    def held(self) -> torch.Tensor | None:
        """What lies there, if anything does."""
        found = self.optimizer.state[self.parameter].get(self.key) if self.parameter in self.optimizer.state else None
        return found if isinstance(found, torch.Tensor) else None

    @property
    def now(self) -> torch.Tensor:
        """What lies there, zeros where nothing does.

        Raises:  ModelError: it has another shape or type than it had at first.
        """
        held = self.held
        if held is None:
            return self._empty().zero_()
        if held.shape != self.own.shape or held.dtype != self.own.dtype or held.layout is not torch.strided:
            raise ModelError(
                f"{self.name} was {tuple(self.own.shape)} {self.own.dtype} at first and is {tuple(held.shape)} "
                f"{held.dtype} ({held.layout}): with local_updates optimizers keep tensors of fixed shapes; use AdamW"
            )
        return held

    def put(self, value: torch.Tensor) -> None:
        """Give it a value."""
        held = self.held
        if held is None:
            self.optimizer.state[self.parameter][self.key] = self._empty().copy_(value)
        else:
            held.copy_(value)

    def _empty(self) -> torch.Tensor:
        return torch.empty_strided(self.own.shape, self.own.stride(), dtype=self.own.dtype, device=self.device)


class Replicas:
    """What one worker keeps of the round that is trained now, and the outer optimizer.

    Args:    state: all that is trained; its parameters require gradients from here on, or never.
    Raises:  ModelError: what an optimizer keeps cannot be averaged; the message says why.
    """

    def __init__(self, spec: JobSpec, state: TrainingState) -> None:
        self.outer = _outer_of(spec)
        self._policy = spec.on_non_finite
        self.left_out = 0
        """Updates of this worker in this round that were not finite, and left out."""
        self.is_updating = False
        self._optimizers = list(state.optimizers.values())
        self._parameters = [(name, one) for name, one in state.named_parameters() if one.requires_grad]
        self.places = list(places_of(state))
        """Of the optimizers' state."""
        self._device = self._parameters[0][1].device if self._parameters else torch.device("cpu")
        self._momentum = {name: _zeros(one) for name, one in self._parameters} if self.outer.momentum else {}
        self._beginning: list[torch.Tensor] = []
        self._keys: list[dict[torch.Tensor, set[str]]] = []
        """By optimizer and parameter, what was kept when the round began."""
        self._options: list[dict[tuple[int, str], Any]] = []
        self.touched: set[str] = set()
        """Names of parameters that the present replica has changed."""

    def begin(self) -> None:
        """A round begins."""
        self.left_out = 0
        parameters = [one.detach() for _, one in self._parameters]
        if not self._beginning:
            self._beginning = [torch.empty_like(one) for one in parameters]
        torch._foreach_copy_(self._beginning, parameters)
        self._keys = [{one: set(kept) for one, kept in optimizer.state.items()} for optimizer in self._optimizers]
        self._options = [_options_of(optimizer) for optimizer in self._optimizers]

    def beginning(self) -> dict[str, torch.Tensor]:
        """By name, the parameters when the round began."""
        return {name: begun for (name, _), begun in zip(self._parameters, self._beginning, strict=True)}

    def restore(self) -> None:
        """What the optimizers keep was put back: what was not there is not there."""
        for optimizer, keys in zip(self._optimizers, self._keys, strict=True):
            for one, kept in list(optimizer.state.items()):
                for key in kept.keys() - keys.get(one, set()):
                    del kept[key]
                if one not in keys:
                    del optimizer.state[one]

    def update(self, weight: float, scale: float = 1.0) -> None:
        """A piece of this weight was gone through: one update of the replica, by all optimizers.

        Args:    scale: what their learning rates are multiplied by in it.
        Raises:
            ModelError: it left no gradient.
            NonFiniteGradient: one is not finite, and the job is to fail then.
        """
        touched = [name for name, one in self._parameters if one.grad is not None]
        if not touched:
            raise ModelError(NO_GRADIENT)
        self.touched.update(touched)
        if weight > 0 and self._may_update():
            self.is_updating = True
            with torch.autocast(self._device.type, enabled=False), _learning_rates(self._optimizers, scale):
                for optimizer in self._optimizers:
                    optimizer.step()
            self.is_updating = False
            torch.clear_autocast_cache()  # it holds weights as they were
        for _, one in self._parameters:
            one.grad = None

    def _may_update(self) -> bool:
        if self._policy == "deliver":
            return True
        gradients = [one.grad for _, one in self._parameters if one.grad is not None]
        if all(is_finite(one.coalesce().values() if one.is_sparse else one) for one in gradients):
            return True
        if self._policy == "fail":
            raise NonFiniteGradient(
                "the gradient of an update was not finite, and the spec says on_non_finite: fail; lower the learning "
                "rate, or say skip"
            )
        self.left_out += 1
        return False

    def finish(self) -> None:
        """The replica has trained: how far it came is its gradient, and the parameters are back at the beginning.

        Raises:  ModelError: the updates changed something that is not averaged.
        """
        self._check_options()
        touched, self.touched = self.touched, set()
        with torch.no_grad():
            for (name, one), beginning in zip(self._parameters, self._beginning, strict=True):
                one.grad = beginning - one if name in touched else None
                one.copy_(beginning)
        torch.clear_autocast_cache()

    def go_back(self) -> None:
        """The round is begun again, or another worker trains it: parameters are as at its beginning."""
        self.touched.clear()
        self.left_out = 0
        with torch.no_grad():
            for (_, one), beginning in zip(self._parameters, self._beginning, strict=True):
                one.copy_(beginning)
                one.grad = None
        torch.clear_autocast_cache()

    def _check_options(self) -> None:
        known = {(id(place.optimizer), id(place.parameter), place.key) for place in self.places}
        for optimizer, options in zip(self._optimizers, self._options, strict=True):
            name = type(optimizer).__name__
            if changed := [key for key, value in _options_of(optimizer).items() if value != options.get(key)]:
                raise ModelError(_advice(f"{name} has changed its option {changed[0][1]} in its updates"))
            for one, kept in optimizer.state.items():
                for key in kept:
                    if (id(optimizer), id(one), key) not in known:
                        raise ModelError(_advice(f"{name} keeps {key!r} by now, which it did not at its first update"))

    def take_mean(self, before: Iterable[tuple[Place, torch.Tensor]]) -> None:
        """The gradients are the mean of how far all came: step the outer optimizer.

        Args:    before: places, and what they held when the round began.
        """
        untouched = set()
        with torch.no_grad():
            for name, one in self._parameters:
                mean, one.grad = one.grad, None
                if mean is None:
                    untouched.add(id(one))
                else:
                    one.sub_(self.outer.direction(mean, self._momentum.get(name)), alpha=self.outer.lr)
            for place, value in before:
                if isinstance(place, OptimizerPlace) and id(place.parameter) in untouched:
                    place.put(value)  # the mean of what nobody changed differs from it by its rounding
        for optimizer, keys in zip(self._optimizers, self._keys, strict=True):
            for one in [one for one in optimizer.state if id(one) in untouched and one not in keys]:
                del optimizer.state[one]

    def state_dict(self) -> dict[str, Any]:
        """What the outer optimizer keeps."""
        return {"momentum": dict(self._momentum)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it; another method keeps something else, and begins anew."""
        for name, saved in state["momentum"].items():
            if name in self._momentum:
                self._momentum[name].copy_(saved)


def replicas_of(spec: JobSpec, state: TrainingState, scaler: Any) -> Replicas | None:
    """Those of a spec that has `local_updates`; what the outer optimizer keeps is part of the state from here on.

    Raises:  ModelError: as `Replicas`, or there is a GradScaler.
    """
    if not spec.local_updates.is_on:
        return None
    if scaler is not None and scaler.is_enabled():
        raise SpecMismatch("with local_updates no GradScaler sees the updates: leave it out; bfloat16 needs none")
    replicas = Replicas(spec, state)
    state.registered[REGISTERED] = replicas
    state.is_steady = False
    return replicas


def _outer_of(spec: JobSpec) -> Outer:
    """That of the spec; but for DiLoCo all go on from where the updates led."""
    outer = spec.local_updates.outer
    return Outer(outer.lr, outer.momentum) if spec.local_updates.method == "diloco" else Outer(1.0, 0.0)


def places_of(state: TrainingState) -> Iterator[OptimizerPlace]:
    """Where optimizers keep tensors, as an update of a copy shows.

    Raises:  ModelError: there is something else than tensors, or no copy can be made.
    """
    names = {id(one): name for name, one in state.named_parameters()}
    for title, optimizer in state.optimizers.items():
        own = [one for group in optimizer.param_groups for one in group["params"]]
        for parameter, kept in zip(own, _probe(optimizer), strict=True):
            for key, value in kept.items():
                if not parameter.requires_grad:
                    continue
                name = f"{type(optimizer).__name__}{f' {title!r}' if title else ''}: {key} of {names[id(parameter)]}"
                if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
                    raise ModelError(_advice(f"{name} is no plain tensor ({type(value).__name__})"))
                yield OptimizerPlace(name, optimizer, parameter, key, value.to("meta"), value.device)


def _probe(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """By parameter, what a copy keeps after an update."""
    try:
        twin = copy.deepcopy(optimizer)
        parameters = [one for group in twin.param_groups for one in group["params"]]
        for one in parameters:
            one.grad = torch.zeros_like(one) if one.requires_grad else None
        before = _options_of(twin)
        twin.step()
    except Exception as error:
        raise ModelError(
            f"local_updates must know what {type(optimizer).__name__} keeps, and an update of a copy of it failed "
            f"({type(error).__name__}: {error}); use AdamW or SGD, or leave local_updates out"
        ) from error
    name, known = type(optimizer).__name__, {id(one) for one in parameters}
    for key, value in _options_of(twin).items():
        if value != before.get(key):
            raise ModelError(_advice(f"{name} keeps {key[1]!r} among its options"))
    if any(id(one) not in known for one in twin.state):
        raise ModelError(_advice(f"{name} keeps something that belongs to no parameter"))
    return [dict(twin.state.get(one, {})) for one in parameters]


@contextlib.contextmanager
def _learning_rates(optimizers: Iterable[torch.optim.Optimizer], scale: float) -> Iterator[None]:
    """Multiplied for a while.

    Raises:  ModelError: an optimizer has none.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups] if scale != 1.0 else []
    if any("lr" not in group for group in groups):
        raise SpecMismatch(
            "local_updates.damping multiplies learning rates, and an optimizer has no `lr`: leave it out"
        )
    before = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * scale
    try:
        yield
    finally:
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate


def _options_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    """By parameter group and name; of tensors their values."""
    return {
        (at, key): value.tolist() if isinstance(value, torch.Tensor) else value
        for at, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }


def _advice(finding: str) -> str:
    return (
        f"{finding}, and local_updates average tensors that optimizers keep by parameter: use AdamW or SGD, have no "
        "hook of an optimizer change anything, or leave local_updates out"
    )


def _zeros(parameter: torch.Tensor) -> torch.Tensor:
    """For momentum, in 32 bits at least."""
    return torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
