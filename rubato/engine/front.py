"""The layers before a cut: what the workers that compute them tell each other, and the keeper at a round's end.

update     the gradients, weighted by the samples, and the sum of the weights
end        which parameters were trained, modes, parameters, buffers, and what the optimizers keep of the parameters

With `front_format: bf16` gradients travel as bfloat16, and parameters as how far they came since the round's beginning
(`strategies.front_format`); all else as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rubato.checkpoint.layout import raw_bytes
from rubato.engine.flat import FlatLayout
from rubato.engine.replicas import Replicas
from rubato.engine.state import Place, TrainingState
from rubato.strategies.front_format import change_bytes, pack_change, sum_rounded, unpack_change
from rubato.strategies.peers import Collectives
from rubato.strategies.sums import sum_directly
from rubato.wire.local_updates import FrontFormat


class Front:
    """That of one worker.

    Args:    parameters: those before the cut that are trained, with their names.  buffers: those before the cut.
    """

    def __init__(
        self,
        state: TrainingState,
        replicas: Replicas,
        parameters: Sequence[tuple[str, torch.Tensor]],
        buffers: Sequence[Place],
        packed: FrontFormat,
    ) -> None:
        self._state, self._replicas, self._parameters, self._format = state, replicas, parameters, packed
        own = {id(one) for _, one in parameters}
        self._places = [*buffers, *(one for one in replicas.places if id(one.parameter) in own)]
        self._layout = FlatLayout(parameters, [])

    def gradients(self, weight: float) -> torch.Tensor:
        """(n + 1,): the gradients, weighted, and the weight. They are taken."""
        vector = self._layout.empty()
        self._layout.pack(vector, [], weight)
        return torch.cat([vector, vector.new_tensor([weight])])

    def sum(self, comm: Collectives, vector: torch.Tensor) -> torch.Tensor:
        """That of all that compute these layers."""
        return sum_rounded(comm, vector) if self._format == "bf16" else sum_directly(comm, vector)

    def update(self, total: torch.Tensor) -> None:
        """Step the optimizers, by the mean of what was summed."""
        weights = float(total[-1])
        if weights > 0:
            self._layout.deliver(total[:-1].div_(weights), [])
            self._replicas.update(weights)
        for _, one in self._parameters:
            one.grad = None

    def pack(self) -> torch.Tensor:
        """(n,) uint8, where the round has ended; each worker has as many."""
        touched, beginning = self._replicas.touched, self._replicas.beginning()
        flags = torch.tensor([name in touched for name, _ in self._parameters], dtype=torch.uint8)
        modes = torch.frombuffer(bytearray(self._state.modes()), dtype=torch.uint8)
        changes = [pack_change(one.detach(), beginning[name], self._format) for name, one in self._parameters]
        held = [one.now for one in self._places]
        return torch.cat([flags, modes, *(raw_bytes(one).cpu() for one in (*changes, *held))])

    def empty_packed(self) -> torch.Tensor:
        """To receive that into."""
        sizes = [change_bytes(one, self._format) for _, one in self._parameters]
        sizes += [one.own.numel() * one.own.element_size() for one in self._places]
        return torch.empty(len(self._parameters) + len(self._state.modes()) + sum(sizes), dtype=torch.uint8)

    def take(self, packed: torch.Tensor) -> None:
        """What another one has packed; these layers are still as they were when the round began."""
        flags, at = packed[: len(self._parameters)].tolist(), len(self._parameters) + len(self._state.modes())
        self._state.take_modes(bytes(packed[len(self._parameters) : at].tolist()))
        self._replicas.touched.update(name for (name, _), flag in zip(self._parameters, flags, strict=True) if flag)

        def taken(size: int) -> torch.Tensor:
            nonlocal at
            at += size
            return packed[at - size : at].clone()

        beginning = self._replicas.beginning()
        with torch.no_grad():
            for name, one in self._parameters:
                told = taken(change_bytes(one, self._format)).to(one.device)
                one.copy_(unpack_change(told, beginning[name], self._format))
            for place in self._places:
                own = place.own
                told = taken(own.numel() * own.element_size()).view(own.dtype).view(own.shape)
                place.put(told.to(self._layout.device))
