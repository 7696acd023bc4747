"""Exchanging less than the dense sum: what every such method has in common.

A compressor takes each worker's vector of a step and gives all of them one vector, in place of the sum. What it leaves
out it keeps, and adds to the next step's vector (error feedback): over the steps nothing is lost or counted twice. What
is kept is *state*. It belongs to the step like the weights do: a step that is lost with its generation leaves the state
as it was, and the step is exchanged again from there. So an exchange changes nothing: it gives the state that follows.

At a planned change of the membership, and before a checkpoint, the state is *settled*: all workers tell each other
what they keep, and each goes on with its share of the sum. So a joiner needs a copy of the sum, a leaver takes nothing
along, and a checkpoint holds one state, from which any number of workers resumes. The sum of what is kept stays the
same, as it must where the batch of a step does not depend on the number of workers. A worker that is lost takes along
what it kept.

Source of error feedback: Seide et al. 2014, doi:10.21437/Interspeech.2014-274; Karimireddy et al. 2019,
arXiv:1901.09847.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

import torch

from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives
from rubato.strategies.sizes import elements_sent
from rubato.strategies.sums import sum_over

State = dict[str, torch.Tensor]
OF_OTHERS = "momentum_of_others"
"""The part of the state that belongs to parameters that go dense."""
WARM = frozenset({"q"})
"""Parts of a state that are no gradients: where there is none that fits, a method begins anew with it."""


class Compressor(ABC):
    """One method, for one model. It holds no state itself. A part of a state means the same in all that have it.

    Args:    layout: of the vector.
    """

    own: Collection[str] = ()
    """The parts of the state of which each worker has its own; what counts is their sum. All other parts are equal on
    all."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def start(self, like: torch.Tensor) -> State:
        """The state before the first step: of what each has its own, zeros (D,).

        Args:    like: a vector (L,); its type and device count.
        """
        return {name: like.new_zeros(self.layout.numel) for name in self.own}

    @abstractmethod
    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, state: State, step: int
    ) -> tuple[torch.Tensor, State]:
        """In place of the sum of all workers' vectors: one vector (L,), equal on all; and the state after it.

        Args:
            state: of this worker; is not changed.
            step: of the job, from 0; for methods that begin gently.
        Raises:  GenerationLost: a peer died; then the state is as it was.
        """

    @abstractmethod
    def sent_bytes(self, rank: int, world: int, element_bytes: int, step: int = 0) -> int | None:
        """What a rank sends to others in a step; None: it depends on the values. Pure."""

    def settle(self, comm: Collectives, state: State) -> State:
        """The state of all together, equal on all: of what each has its own, the sum."""
        names = sorted(state)  # in one order on all, wherever they have their states from
        return {name: sum_over(comm, state[name]) if name in self.own else state[name] for name in names}

    def adopt(self, settled: State, rank: int, world: int) -> State:
        """A worker's share of a settled state, among so many. Pure."""
        return {name: part / world if name in self.own else part for name, part in settled.items()}


class Piecewise(Compressor):
    """A method for the pieces of a layout; all else goes dense."""

    @abstractmethod
    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """What all workers take for the sum of their parts, with equal bits; and the state after it.

        Args:
            part_D: of this worker, what the layout has compressed; may be overwritten.
            state, step: as for `exchange`.
        """

    @abstractmethod
    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int | None:
        """What a rank sends to others for the compressed part of a step; None: it depends on the values."""

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, state: State, step: int
    ) -> tuple[torch.Tensor, State]:
        """See `Compressor`."""
        compressed, after = self.compress(comm, self.layout.take(vector_L), state, step)
        return self.layout.join(compressed, sum_over(comm, self.layout.take_dense(vector_L))), after

    def sent_bytes(self, rank: int, world: int, element_bytes: int, step: int = 0) -> int | None:
        """See `Compressor`."""
        compressed = self.compressed_bytes(rank, world, element_bytes, step)
        dense = element_bytes * elements_sent("direct", rank, world, self.layout.dense_numel)
        return None if compressed is None else compressed + dense


class Correcting(Piecewise):
    """A method whose residual may carry momentum (the correction of Lin et al. 2018, arXiv:1712.01887).

    Parameters that go dense have momentum as an optimizer would give it to their sums: so it is equal on all.

    Args:    momentum: m; 0: none.
    """

    def __init__(self, layout: Layout, momentum: float) -> None:
        super().__init__(layout)
        self._momentum = momentum
        self.own = ("residual", "momentum") if momentum else ("residual",)

    def start(self, like: torch.Tensor) -> State:
        """See `Compressor`."""
        state = super().start(like)
        return {**state, OF_OTHERS: like.new_zeros(self.layout.others_numel)} if self._momentum else state

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, state: State, step: int
    ) -> tuple[torch.Tensor, State]:
        """See `Compressor`."""
        total, after = super().exchange(comm, vector_L, state, step)
        if self._momentum:
            after[OF_OTHERS] = self.layout.take_others(total).add_(state[OF_OTHERS], alpha=self._momentum)
            self.layout.put_others(total, after[OF_OTHERS])
        return total, after

    def gather(self, part_D: torch.Tensor, state: State) -> State:
        """The state with a step's part: u <- m u + g and v <- v + u, or v <- v + g. `part_D` is overwritten."""
        gathered: State = {}
        if self._momentum:
            gathered["momentum"] = part_D.add_(state["momentum"], alpha=self._momentum)
        gathered["residual"] = state["residual"] + part_D
        return gathered

    def clear(self, gathered: State, places: torch.Tensor) -> None:
        """What travels is kept no longer; nor is its momentum (factor masking)."""
        for kept in gathered.values():
            kept[places] = 0
