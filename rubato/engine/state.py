"""The state of training: everything that must be equal on all members, saved, sent to joiners, and hashed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from rubato.checkpoint.digest import digest64, state_digest
from rubato.checkpoint.layout import raw_bytes
from rubato.checkpoint.tree import decode, encode
from rubato.engine.shares import overlaps, share_bounds, total_bytes
from rubato.errors import CheckpointError, ModelError

OPTIONAL = frozenset(
    {"rubato.aggregation", "rubato.noise", "rubato.outer", "rubato.rate", "rubato.streaming", "rubato.updates"}
)
"""Names of what a job may begin to have, or no longer have, when it goes on from a checkpoint."""


class Place(Protocol):
    """Where a tensor of the training lies that is no parameter."""

    @property
    def name(self) -> str:
        """As a user knows it."""
        ...

    @property
    def own(self) -> torch.Tensor:
        """Its shape and type."""
        ...

    @property
    def is_value(self) -> bool:
        """Whether what it holds is averaged itself, and not by how much it has changed."""
        ...

    @property
    def now(self) -> torch.Tensor:
        """What it holds. Raises ModelError: something of another shape or type."""
        ...

    def put(self, value: torch.Tensor) -> None:
        """Give it a value."""
        ...


@dataclass(frozen=True)
class Buffer:
    """A place of a module that holds a buffer. Programs may put another tensor there, of the same shape and type."""

    name: str
    module: nn.Module
    key: str
    own: torch.Tensor
    """What it held at first and holds again when the engine gives it a value: what programs put there is theirs."""
    is_value = False

    @property
    def now(self) -> torch.Tensor:
        """What it holds.

        Raises:
            ModelError: it holds a tensor of another shape or type by now, or none; the message names it.
        """
        buffers = self.module._buffers
        tensor = buffers[self.key] if self.key in buffers else None  # noqa: SIM401 - scripted modules have no `get`
        if tensor is None or tensor.shape != self.own.shape or tensor.dtype != self.own.dtype:
            now = "gone" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ModelError(
                f"buffer {self.name} was {tuple(self.own.shape)} {self.own.dtype} when run.steps() began and is {now}: "
                "workers exchange buffers, so give it its final shape in the constructor, or keep it as a plain "
                "attribute if it can be computed anew"
            )
        return tensor

    def put(self, value: torch.Tensor) -> None:
        """Give it a value."""
        _write(self.own, value)
        if self.module._buffers[self.key] is not self.own:
            self.module._buffers[self.key] = self.own


def _write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Also where it was made under torch.inference_mode(), as a frozen part of a model may be."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(value)


def buffers_of(models: Mapping[str, nn.Module]) -> list[Buffer]:
    """The places of all buffers in registration order, shared ones once, those that are not persistent too."""
    seen: set[int] = set()
    found = []
    for prefix, model in models.items():
        for path, module in model.named_modules(prefix=prefix):
            for key, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append(Buffer(f"{path}.{key}" if path else key, module, key, tensor))
    return found


class TrainingState:
    """Models, optimizers, schedulers and whatever else the user registered.

    Args:
        models: by name; "" for the only one.
        optimizers: likewise.
        registered: by name, anything with `state_dict` and `load_state_dict`.
        notes: `run.state`, a dict of the user's.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        registered: Mapping[str, Any],
        notes: dict[str, Any],
    ) -> None:
        self.models = dict(models)
        self.optimizers = dict(optimizers)
        self.registered = dict(registered)
        self.notes = notes
        self.is_steady = True
        """Whether parameters and optimizer state change only after a step's reduction."""
        self.buffers = buffers_of(self.models)
        """Where they are; which there are does not change."""
        for optimizer in self.optimizers.values():
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ModelError(
                    "LBFGS evaluates the loss several times a step; a step here is one gradient: use another"
                )
        self._check_names()
        self._check_optimizers_know_the_model()

    def _check_names(self) -> None:
        for kind, named in (("parameters", self.named_parameters()), ("buffers", self.named_buffers())):
            if doubled := sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1):
                raise ModelError(
                    f"two {kind} would be saved under one name ({', '.join(doubled[:3])}): give the models that "
                    "run.prepare gets names that are no module's path in another"
                )

    def _check_optimizers_know_the_model(self) -> None:
        known = {id(parameter) for _, parameter in self.named_parameters()}
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                if any(id(parameter) not in known for parameter in group["params"]):
                    raise ModelError(
                        "the optimizer holds parameters that are not of the prepared model: build it from "
                        "model.parameters() of the model you prepare, after any change of the model"
                    )

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """In registration order; shared ones once."""
        seen: set[int] = set()
        found: list[tuple[str, torch.Tensor]] = []
        for prefix, model in self.models.items():
            for name, parameter in model.named_parameters(prefix=prefix):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    found.append((name, parameter))
        return found

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """In registration order, those that are not persistent too, as the modules hold them now."""
        return [(one.name, one.now) for one in self.buffers]

    def networks(self) -> list[nn.Module]:
        """The models, and what is registered and is one (an average of weights)."""
        return [*self.models.values(), *(one for one in self.registered.values() if isinstance(one, nn.Module))]

    def _named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for prefix, model in self.models.items():
            yield from model.named_modules(prefix=prefix)

    def state_dict_names(self) -> dict[str, dict[str, list[str]]]:
        """By model, the keys of its `state_dict` and where `encode` has them: [parameters or buffers, name].

        Tied parameters have several keys, and buffers that are not persistent none.
        """
        places = {id(parameter): ["parameters", name] for name, parameter in self.named_parameters()}
        places |= {id(buffer): ["buffers", name] for name, buffer in self.named_buffers()}
        return {
            prefix: {
                key: places[id(value)] for key, value in model.state_dict(keep_vars=True).items() if id(value) in places
            }
            for prefix, model in self.models.items()
        }

    # --- out and in ---------------------------------------------------------------------------------------------------

    def encode(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """A JSON document and the tensors it names, by reference: copy them before training goes on.

        Raises:
            ModelError: something in it cannot be saved; the message names it.
        """
        return self._encode(self._tree())

    def capture(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Likewise, with copies of all but parameters and optimizer state.

        Where these change only after a step's reduction, who copies them may do so while microbatches are computed.

        Raises:
            ModelError: as `encode`.
        """
        tree = self._tree()
        document, tensors = self._encode(tree)
        steady = {id(parameter) for parameter in tree["parameters"].values()}
        steady |= {id(value) for _, _, value in self._optimizer_state()}
        return document, [tensor if id(tensor) in steady else tensor.clone() for tensor in tensors]

    def _tree(self) -> dict[str, Any]:
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {
            "parameters": {name: parameter.detach() for name, parameter in self.named_parameters()},
            "buffers": dict(self.named_buffers()),
            "optimizers": optimizers,
            "strides": {name: _strides_of(saved) for name, saved in optimizers.items()},
            "registered": {name: thing.state_dict() for name, thing in self.registered.items()},
            "notes": self.notes,
            "frozen": [name for name, parameter in self.named_parameters() if not parameter.requires_grad],
            "evaluating": [name for name, module in self._named_modules() if not module.training],
        }

    def _encode(self, tree: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Of the tensors that no place of their own takes in, the document says which are on the model's device."""
        try:
            document, tensors = encode(tree)
        except CheckpointError as error:
            raise ModelError(f"{error} (`notes` is run.state)") from error
        if any(tensor.device.type != "cpu" for tensor in tensors) and (found := self._on_device(tree, tensors)):
            document["on_device"] = found
        return document, tensors

    def _on_device(self, tree: dict[str, Any], tensors: list[torch.Tensor]) -> list[int]:
        """Which tensors go back to a device, of those that are taken over as they come: modules copy theirs."""
        taken = [(name, not isinstance(thing, nn.Module)) for name, thing in self.registered.items()]
        kept = [*((tree["registered"][name], is_loose) for name, is_loose in taken), (tree["notes"], True)]
        found, end = [], len(tensors)  # nothing behind them in the tree has tensors
        for saved, is_loose in reversed(kept):
            begin = end - len(encode(saved)[1])
            found += [at for at in range(begin, end) if is_loose and tensors[at].device.type != "cpu"]
            end = begin
        return sorted(found)

    def install(self, document: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Take over a state, bit for bit. What is registered as `OPTIONAL` may be in one of the two only.

        Returns: by name, what is in the saved one only.
        Raises:
            CheckpointError: it is the state of another model.
        """
        device = next(tensor.device for _, tensor in self.named_parameters())
        on_device = set(document.get("on_device", ()))
        tensors = [one.to(device) if index in on_device else one for index, one in enumerate(tensors)]
        tree = decode(document, tensors)
        parameters, buffers = dict(self.named_parameters()), {one.name: one for one in self.buffers}
        _check_equal("parameter", parameters, tree["parameters"])
        _check_equal("buffer", {name: one.own for name, one in buffers.items()}, tree["buffers"])
        for name, parameter in parameters.items():
            _write(parameter, tree["parameters"][name])
        for name, buffer in buffers.items():
            buffer.put(tree["buffers"][name])
        for kind, mine in (("optimizers", self.optimizers), ("registered", self.registered)):
            if not set(tree[kind]) ^ set(mine) <= OPTIONAL:
                raise CheckpointError(f"the saved {kind} are {sorted(tree[kind])}, the program has {sorted(mine)}")
        for name, optimizer in self.optimizers.items():
            _load_optimizer(optimizer, tree["optimizers"][name], tree["strides"][name] if "strides" in tree else None)
        for name, thing in self.registered.items():
            if name in tree["registered"]:
                thing.load_state_dict(tree["registered"][name])
        self.notes.clear()
        self.notes.update(tree["notes"])
        # What a program switched in an earlier step, a joiner's program never ran.
        frozen, evaluating = set(tree["frozen"]), set(tree["evaluating"])
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)
        for name, module in self._named_modules():
            module.training = name not in evaluating
        return {name: saved for name, saved in tree["registered"].items() if name not in self.registered}

    def modes(self) -> bytes:
        """Whether each module is in training mode."""
        return bytes(module.training for _, module in self._named_modules())

    def take_modes(self, modes: bytes) -> None:
        """Those of another worker, whose program has switched them."""
        for (_, module), mode in zip(self._named_modules(), modes, strict=True):
            module.training = bool(mode)

    # --- hashes -------------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """SHA-256 over parameters, buffers and optimizer state, in registration order: a job's result."""
        return state_digest(self.named_parameters(), self.named_buffers(), self._optimizer_state())

    def _optimizer_state(self) -> Iterator[tuple[int, str, Any]]:
        index = 0
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                        yield index, key, value
                    index += 1

    def layout_digest(self, *terms: object) -> str:
        """A hash of names, shapes and types, and of `terms`: workers whose hashes differ cannot train together."""
        parts = [
            [name, str(tensor.dtype), list(tensor.shape)]
            for name, tensor in (*self.named_parameters(), *self.named_buffers())
        ]
        names = [sorted(self.optimizers), sorted(self.registered), [repr(term) for term in terms]]
        return hashlib.sha256(json.dumps([parts, names]).encode()).hexdigest()[:16]


def digest_of_part(document: dict[str, Any], tensors: list[torch.Tensor], part: int, parts: int) -> int:
    """64 bits over an encoded state: its document, and one of `parts` shares of its tensors."""
    if parts > 1:
        begin, end = share_bounds(total_bytes(tensors), parts)[part]
        tensors = [raw_bytes(one)[first:last] for one, first, last, _ in overlaps(tensors, begin, end)]
    text = json.dumps(document, sort_keys=True).encode()
    scalars = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
    return (digest64(tensors) ^ scalars) if tensors else scalars


def _check_equal(kind: str, mine: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    if set(mine) != set(saved):
        differing = sorted(set(mine) ^ set(saved))[:3]
        raise CheckpointError(f"the saved state is of another model: {kind} {', '.join(differing)} not in both")
    for name, tensor in mine.items():
        if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
            theirs = f"{tuple(saved[name].shape)} {saved[name].dtype}"
            raise CheckpointError(f"{kind} {name} is {tuple(tensor.shape)} {tensor.dtype}, the saved one {theirs}")


def _strides_of(saved: Mapping[str, Any]) -> list[list[Any]]:
    """[index, key, strides] of an optimizer's tensors whose elements do not lie in the order of their indices."""
    return [
        [index, key, list(value.stride())]
        for index, values in saved.get("state", {}).items()
        if isinstance(values, Mapping)
        for key, value in values.items()
        if isinstance(value, torch.Tensor) and not value.is_contiguous()
    ]


def _load_optimizer(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], strides: Sequence[Sequence[Any]] | None
) -> None:
    """Load the state, then put its tensors back as they were: torch casts them to the parameter's dtype.

    Args:    strides: as `_strides_of`; kernels may round differently where elements lie in another order. None: not
        told, by an older release, which laid them out as their parameters are.
    """
    optimizer.load_state_dict(saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    order = [index for group in saved["param_groups"] for index in group["params"]]
    stride_of = {(index, key): tuple(stride) for index, key, stride in strides or ()}
    for index, parameter in zip(order, parameters, strict=True):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, torch.Tensor):
                mine = optimizer.state[parameter][key]
                plain = parameter.stride() if strides is None and value.shape == parameter.shape else value.stride()
                stride = stride_of.get((index, key), plain)
                if mine.dtype != value.dtype or mine.stride() != stride:
                    laid_out = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=mine.device)
                    optimizer.state[parameter][key] = laid_out.copy_(value)
