"""Tensors of a device that has no NCCL of its own travel by way of the CPU's memory: with tensors that only say so.

What is asserted is what the branch is for: gloo is never handed a tensor of the device, the device's tensors are
written when the collective is waited for and not before, and a loss leaves them as they were. Real devices: tests/gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from groups import gloo_group, on_ranks, outcomes

from rubato.engine.comm import Communicator
from rubato.engine.pending import Staged
from rubato.errors import GenerationLost

DEVICE = torch.device("cuda", 0)


class OnDevice(torch.Tensor):
    """Says that it lies on a device; only copies of it are on the CPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs or {})
        is_here = function is torch.empty_like and (kwargs or {}).get("device") == "cpu"
        return made.as_subclass(torch.Tensor) if is_here else made


def on_device(values: torch.Tensor) -> torch.Tensor:
    return values.as_subclass(OnDevice)


class CpuOnly:
    """A gloo group that sees what it is handed."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert not any(isinstance(one, OnDevice) for one in arguments), f"{name} of a device's tensor"
            self.calls += 1
            return getattr(self._group, name)(*arguments)

        return call


@contextmanager
def guarded_group(world: int) -> Iterator[list[Communicator]]:
    with gloo_group(world) as group:
        for comm in group:
            comm._group = CpuOnly(comm._group)
        yield group


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_arrives_is_what_was_sent(world: int) -> None:
    with guarded_group(world) as group:

        def play(rank: int) -> tuple[list[int], list[int]]:
            gathered = on_device(torch.zeros(world, dtype=torch.int64))
            group[rank].all_gather(gathered, on_device(torch.tensor([rank + 5])))
            out = on_device(torch.full((world,), 11 * rank))
            source = on_device(torch.arange(world) + 10 * rank)
            others = [other for other in range(world) if other != rank]
            group[rank].pass_messages(
                [(other, out[other : other + 1]) for other in others],
                [(other, source[other : other + 1]) for other in others],
            )
            return gathered.tolist(), out.tolist()

        for rank, (gathered, out) in enumerate(on_ranks(world, play)):
            assert gathered == [one + 5 for one in range(world)]
            assert out == [10 * sender + rank for sender in range(world)]
        assert [comm._group.calls for comm in group] == [1 + 2 * (world - 1)] * world


def test_the_device_is_written_when_it_is_waited_for() -> None:
    with guarded_group(2) as group:
        outs = [on_device(torch.zeros(2, dtype=torch.int64)) for _ in range(2)]
        sources = [on_device(torch.tensor([7 + rank])) for rank in range(2)]
        pending = on_ranks(2, lambda rank: group[rank].start_all_gather(outs[rank], sources[rank]))
        assert all(isinstance(one, Staged) for one in pending)
        for source in sources:
            source.fill_(0)  # the copy that travels was made at the start
        pending[0].wait()
        assert (outs[0].tolist(), outs[1].tolist()) == ([7, 8], [0, 0])
        pending[1].wait()
        assert outs[1].tolist() == [7, 8]


def test_a_loss_leaves_the_device_as_it_was() -> None:
    with guarded_group(2) as group:

        def play(rank: int) -> list[int]:
            out = on_device(torch.full((2,), 3))
            if rank == 1:
                group[rank].bury()
                return [3, 3]
            try:
                group[rank].all_gather(out, on_device(torch.tensor([rank])))
            except GenerationLost:
                return out.tolist()
            raise AssertionError("nobody else was there")

        assert outcomes(2, play) == [[3, 3], [3, 3]]
