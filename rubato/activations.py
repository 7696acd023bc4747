"""What a pass keeps on its way forward for its way back, in bytes: activations, and copies that layers make of weights.

On a CPU autograd tells of each tensor that it saves, and of each that it lets go. One that lies in the memory of a
parameter, of a buffer or of the batch takes none of its own, and several that share memory take it once. What a layer
needs only while it computes is not in it. On a GPU the allocator says how much was there at most, that included.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch


class SavedTensors:
    """Counts what autograd saves in this context, and gives it back as it was.

    Args:    known: tensors whose memory is there anyway.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        self._known = {_address(one) for one in known}
        self._saved: Counter[int] = Counter()
        """By address, how many tensors that are saved lie there."""
        self._now_bytes = 0
        self.most_bytes = 0
        """At one time."""
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def turn(self) -> None:
        """The way back begins."""

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor.detach())  # a saved tensor that is held itself would hold the graph that holds it
        address = _address(tensor)
        if address and address not in self._known:
            size = tensor.untyped_storage().nbytes()
            if not self._saved[address]:
                self._now_bytes += size
                self.most_bytes = max(self.most_bytes, self._now_bytes)
            self._saved[address] += 1
            weakref.finalize(held, self._let_go, address, size)
        return held

    def _let_go(self, address: int, size: int) -> None:
        self._saved[address] -= 1
        if not self._saved[address]:
            self._now_bytes -= size


class _Held:
    """One that is saved, for as long as the graph needs it: until then nothing else gets its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class DeviceMemory:
    """Asks the allocator of a GPU, in this context, how much more was there at most than before, gradients left out.

    On the way forward there are none yet; on the way back so many of them as the pass leaves may have been there.

    Args:    parameters: that get gradients.
    """

    def __init__(self, device: torch.device, parameters: Iterable[torch.Tensor]) -> None:
        self._device, self._parameters = device, list(parameters)
        self._before_bytes = self._forward_bytes = 0
        self.most_bytes = 0

    def __enter__(self) -> Self:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before_bytes = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        gradients = sum(one.grad.nbytes for one in self._parameters if one.grad is not None)
        self.most_bytes = max(self._forward_bytes, self._more_bytes() - gradients)

    def turn(self) -> None:
        """The way back begins, if it has not yet."""
        self._forward_bytes = self._forward_bytes or self._more_bytes()

    def _more_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._before_bytes


def follow(device: torch.device, models: Iterable[torch.nn.Module], batch: Any) -> SavedTensors | DeviceMemory:
    """What counts, as a context around a pass over a batch, what it keeps."""
    models = list(models)
    parameters = [one for model in models for one in model.parameters()]
    if device.type == "cuda":
        return DeviceMemory(device, parameters)
    buffers = [one for model in models for one in model.buffers()]
    return SavedTensors([*parameters, *buffers, *tensors_in(batch)])


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Those of a batch, however mappings, tuples and lists nest in it."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_in(value)


def _address(tensor: torch.Tensor) -> int:
    """Where its memory lies; 0: it has none that is laid out in strides."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
