"""Layers with few parameters and layers with many, on workers of their own.

Convolutional layers take most of the computation and hold few parameters, fully connected ones the reverse. So C
workers have the layers up to a cut, each with its own samples, and F workers those behind it; CONV worker i asks FC
worker i mod F. The parameters behind the cut, and their gradients, never travel where F = 1.

Per microbatch, b samples of each CONV worker, A elements of a sample at the cut, K at the end:
1. CONV: a = front(x), told to its FC worker.
2. FC: all a that came, one below the other in the order of ranks; y = back(a). Each gets its rows of y.
3. CONV: the loss of y, from the labels, which stay here, and its gradient by y, told to the FC worker.
4. FC: backward through `back`. Each gets the gradient by its a.
5. CONV: backward through `front`.
Then the gradients of `front` are summed over the CONV workers, and those of `back` over the FC workers.

Sent by a CONV worker: (A + K) b e bytes a microbatch of e bytes an element, and 2n(C-1)/C of the n bytes of `front`.
Against sums of everything it pays where b A ceil(C/F) is far less than what `back` holds.

A program need not know: what it calls in place of `back` is `Asking`. With losses that are means over samples, weighted
by the samples of the step, it is synchronous SGD over the batch of all CONV workers.

Source: Wu et al. 2018, Stanza, arXiv:1812.10624; the messages are derived from its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rubato.strategies.peers import Collectives, Group, exchange, split
from rubato.strategies.sums import sum_directly


@dataclass(frozen=True)
class Roles:
    """Who computes what, by rank."""

    front: Sequence[int]
    """The CONV workers, at least one: C of them."""
    keepers: Sequence[int]
    """The FC workers: F of them. Where one leads, as in the rounds of `engine.separation`, it is the first."""

    @classmethod
    def counted(cls, conv: int, fc: int) -> Roles:
        """The first ranks are CONV workers, those behind them FC workers."""
        return cls(range(conv), range(conv, conv + fc))

    @classmethod
    def led(cls, leader: int, others: Sequence[int], keepers: int) -> Roles:
        """As many keepers as are wanted, but no more than half of all, so that each is asked by one.

        Args:    others: all but the leader, at least one.
        """
        more = min(keepers, (1 + len(others)) // 2) - 1
        return cls(others[more:], (leader, *others[:more]))

    def is_conv(self, rank: int) -> bool:
        """Whether a rank has the layers up to the cut."""
        return rank in self.front

    def asked_by(self, rank: int) -> list[int]:
        """Of an FC worker: its CONV workers."""
        return list(self.front[self.keepers.index(rank) :: len(self.keepers)])

    def asks(self, rank: int) -> int:
        """Of a CONV worker: its FC worker."""
        return self.keepers[self.front.index(rank) % len(self.keepers)]

    def group(self, rank: int) -> Sequence[int]:
        """All that have the same layers."""
        return self.front if self.is_conv(rank) else self.keepers


class Asking(torch.nn.Module):
    """What a CONV worker has in place of the layers behind the cut.

    Args:    outputs: K, elements that these give for a sample.
    """

    def __init__(self, comm: Collectives, roles: Roles, outputs: int) -> None:
        super().__init__()
        self._link = comm, roles.asks(comm.rank), outputs

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """(b, A) -> (b, K)."""
        answer: torch.Tensor = _Ask.apply(a, self._link)  # type: ignore[no-untyped-call]
        return answer


class _Ask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, link: tuple[Collectives, int, int]) -> torch.Tensor:
        comm, server, outputs = link
        ctx.link, ctx.shape = link, a.shape
        exchange(comm, {server: a.flatten()}, {}, a.dtype)
        came = exchange(comm, {}, {server: a.shape[0] * outputs}, a.dtype)
        return came[server].view(a.shape[0], outputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        comm, server, _ = ctx.link
        exchange(comm, {server: gradient.flatten()}, {}, gradient.dtype)
        came = exchange(comm, {}, {server: ctx.shape.numel()}, gradient.dtype)
        return came[server].view(ctx.shape), None


def answer(
    comm: Collectives, roles: Roles, back: torch.nn.Module, samples: Sequence[int], inputs: int, dtype: torch.dtype
) -> None:
    """What an FC worker does for a microbatch: phases 1 to 4; gradients of `back` are added up in its parameters.

    Args:
        samples: by CONV worker, of its microbatch.
        inputs: A.
    """
    clients = roles.asked_by(comm.rank)
    counts = [samples[rank] for rank in clients]
    came = exchange(comm, {}, {rank: samples[rank] * inputs for rank in clients}, dtype)
    a = _rows([came[rank] for rank in clients], inputs, dtype).requires_grad_()
    y = back(a)
    sent = dict(zip(clients, split(y.detach(), counts), strict=True))
    exchange(comm, {rank: one.flatten() for rank, one in sent.items()}, {}, dtype)
    outputs = y.shape[1]
    came = exchange(comm, {}, {rank: samples[rank] * outputs for rank in clients}, dtype)
    if clients:
        y.backward(_rows([came[rank] for rank in clients], outputs, dtype))
    gradients = split(a.grad, counts) if a.grad is not None else ()
    exchange(comm, {rank: one.flatten() for rank, one in zip(clients, gradients, strict=True)}, {}, dtype)


def sum_gradients(comm: Collectives, roles: Roles, parameters: Sequence[torch.nn.Parameter]) -> None:
    """After the last microbatch, on all ranks: each group sums the gradients of its layers."""
    group = Group(comm, roles.group(comm.rank))
    flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters])
    total = sum_directly(group, flat)
    for parameter, part in zip(parameters, split(total, [one.numel() for one in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def _rows(parts: list[torch.Tensor], columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.cat(parts).view(-1, columns) if parts else torch.empty(0, columns, dtype=dtype)
