"""What a strategy has each worker keep for itself from a step to the next, and what the engine asks of it.

    own        what follows from a step's exchange is *pending* until the step counts, and is dropped where it does not.
               Whoever counts a step has heard of all members that they have what follows
    settled    at a boundary where members come or go, or the state is saved, all tell each other what they keep: from
               here to the next step everybody has the same, which is saved, compared and given to joiners as other
               states are

A worker that is lost between two steps takes along what it kept; one that is lost behind a settlement takes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from rubato.data.order import BatchPlan
from rubato.engine.entry import Key
from rubato.engine.flat import FlatLayout
from rubato.strategies.peers import Collectives


class Keeping(ABC):
    """How one worker's part of each step becomes what all take for their sum, where a spec says how."""

    registered: ClassVar[str]
    """The name of what is kept, in the training state."""
    what: ClassVar[str]
    """What is kept, in words."""
    saved: ClassVar[str]
    """What of it a checkpoint has that may not fit what is trained now, in words."""
    parts_states: ClassVar[bool]
    """Whether workers have other weights each, from a step to the next settlement."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """By incarnation, the norm of what each worker keeps."""
        self.settling: Key | None = None
        """The exchange in which what is kept is settled, while that is under way."""
        self.dropped = 0.0
        """The share of what a checkpoint had that does not fit here, which is not told yet."""
        self.is_disturbed = False
        """Whether members were lost, or moved, since what is kept was shared out."""
        self.scale = 1.0
        """What a GradScaler has multiplied the gradients of the present step by; equal on all workers."""
        self.unit = 1
        """A part of the present step of this weight is in its vector as it is, and others in proportion."""
        self.weight = 0.0
        """Of this worker's part of the present step."""
        self.whole = 1.0
        """Of all workers' parts together, in that unit: the mean is the sum of the vectors, divided by it."""

    @property
    def share(self) -> float:
        """What this worker's part of the present step counts, in the unit of the vectors."""
        return self.weight / self.unit

    def check_optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Raises:  ModelError: they do not go with it."""
        del optimizers

    def check_registered(self, registered: Mapping[str, object]) -> None:
        """Raises:  ModelError: something that is registered does not go with it."""
        del registered

    @abstractmethod
    def prepare(self, flat: FlatLayout, plan: BatchPlan) -> None:
        """Training is about to begin, with this model.

        Raises:  ModelError: the method does not suit it.
        """

    @abstractmethod
    def begin(self, hosts: Sequence[int], *, counts: bool) -> None:
        """A generation begins, whose members are on these machines.

        Members that go on with what each has of its own were not brought here by a settlement. Some may not have
        counted yet the step that it follows from.

        Args:    counts: the present step was exchanged before, as this worker was told.
        """

    def send_first(self, comm: Collectives, vector_L: torch.Tensor, step: int, tell: Callable[[], object]) -> None:
        """Exchange what of a step comes before all else, unless that is under way: then wait for it.

        Args:    vector_L: of this worker, as for `exchange`.  tell: has all members tell that this comes now.
        Raises:  GenerationLost, NotOnAllWorkers: as `tell_other`.
        """
        del comm, vector_L, step, tell

    def abandon(self) -> None:
        """The generation is lost: nobody uses its group any more when this returns."""
        return  # where nothing is sent first, nothing is under way

    @abstractmethod
    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool
    ) -> tuple[torch.Tensor, bool]:
        """What this worker takes for the sum of all vectors (L,), a new one; it may be asked again for the same step.

        Args:    are_finite: whether all workers' are: else they are added up as they are, and nothing is kept of them.
        Returns: it, and whether its gradients are finite.
        Raises:  GenerationLost: a member was lost.
        """

    def hear(self, told: Mapping[str, float]) -> None:
        """By incarnation, the norm of what each worker keeps if the step counts that was exchanged last."""
        self._told = dict(told)

    @abstractmethod
    def count(self, step: int, *, follows: bool) -> torch.Tensor | None:
        """The step counts: what follows from its exchange is kept.

        Args:    follows: this worker joins, took no part in the exchange, and keeps nothing yet.
        Returns: what this worker takes for the sum, where that is not what all take.
        Raises:  ProtocolError: it took no part, but should have.
        """

    @property
    @abstractmethod
    def kept(self) -> float:
        """What this worker keeps of its own if the step counts that it has exchanged: its norm, or more."""

    def lost(self, incarnations: Collection[str]) -> tuple[float, float]:
        """What others than these kept, and nobody does now, once: its norm at most, and its share by such norms.

        It adds up at the same places: its norm is that of each together where all kept the same.
        """
        gone = sum(self._told.pop(one) for one in sorted(set(self._told).difference(incarnations)))
        whole = gone + sum(self._told.values())
        return gone, gone / whole if whole else 0.0

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether all know what they keep together, or the method keeps nothing; equal on all members."""

    @abstractmethod
    def settle(self, comm: Collectives) -> torch.Tensor:
        """What all keep together; changes nothing.

        Returns: float64 (n,), equal on all: the bytes of it, for `take`.
        Raises:  GenerationLost: a member was lost.
        """

    @abstractmethod
    def take(self, row: torch.Tensor) -> None:
        """From here to the next step, this is what all keep together.

        Args:    row: float64 (n,), as `settle` gave it.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What all keep together, where they know it."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what means the same here, by the names of parameters, and drop what else there is: see `dropped`.

        A job may go on with another method, or from a program that names its parameters in another order.
        """

    @abstractmethod
    def resume(self) -> None:
        """The state was that of a checkpoint, which may tell nothing of what is kept."""


def to_row(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """float64 (n,): the bytes of tensors, one behind the other."""
    raw = [one.detach().cpu().contiguous().view(-1).view(torch.uint8) for one in parts]
    return torch.cat([*raw, torch.zeros(-sum(map(len, raw)) % 8, dtype=torch.uint8)]).view(torch.float64)


def from_row(row: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors again, which have the shapes and types of these."""
    data, at, found = row.reshape(-1).view(torch.uint8), 0, []
    for one in like:
        size = one.numel() * one.element_size()
        found.append(data[at : at + size].clone().view(one.dtype).view(one.shape))
        at += size
    return found
