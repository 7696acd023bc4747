"""Workers that keep a part of their gradients, as threads, and a ledger of what has counted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from groups import fake_group, on_ranks
from torch import nn

from rubato.data.order import BatchPlan
from rubato.engine.aggregation import Aggregation, aggregation_of
from rubato.engine.flat import FlatLayout
from rubato.wire.aggregation import AggregationSpec, CompressionSpec, Method

SIDES = 6, 5
PLAN = BatchPlan(32, 16, 4, 0)
KEEPING: list[Method] = ["topk", "gtopk", "hierarchical_topk", "threshold", "onebit", "powersgd", "sketch"]


def flat() -> FlatLayout:
    torch.manual_seed(0)
    return FlatLayout(list(nn.Linear(SIDES[1], SIDES[0], dtype=torch.float64).named_parameters()), [])


def spec_of(method: Method, **more: Any) -> AggregationSpec:
    return AggregationSpec(compression=CompressionSpec(method, density=0.1, threshold=0.5, rank=1, **more))


class Job:
    """Some workers, and how often each part of their gradients has counted."""

    def __init__(self, method: Method, world: int, layout: FlatLayout | None = None, **more: Any) -> None:
        self.spec, self.flat, self.step = spec_of(method, **more), layout or flat(), 0
        self.are_alike = False
        """Whether all workers have the same gradients."""
        self.scale = self.whole = 1.0
        self.workers = [self.new() for _ in range(world)]
        self.given = torch.zeros(self.flat.length, dtype=torch.float64)
        self.applied = torch.zeros_like(self.given)
        self.told: dict[str, float] = {}
        """By worker, the norm of what it keeps."""

    def new(self) -> Aggregation:
        made = aggregation_of(self.spec, seed=3)
        assert made is not None
        made.prepare(self.flat, PLAN)
        made.scale, made.whole = self.scale, self.whole
        return made

    @property
    def world(self) -> int:
        return len(self.workers)

    def begin(self, counts: Collection[int] = ()) -> None:
        """A generation: two machines, the second one has fewer.

        Args:    counts: who has heard that the present step counts.
        """
        for number, worker in enumerate(self.workers):
            hosts = [int(rank > self.world // 2) for rank in range(self.world)]
            worker.begin(hosts, counts=number in counts)

    def exchange(self, *, counts: bool, are_finite: bool = True, untouched: Collection[str] = ()) -> None:
        """A step.

        Args:    untouched: parameters that nobody has a gradient of.
        """
        vectors = self.vectors(untouched)
        scaled = vectors.clone()
        scaled[:, : self.flat.gradients] *= self.scale * self.whole
        group = fake_group(self.world)
        results = on_ranks(
            self.world,
            lambda rank: self.workers[rank].exchange(
                group[rank], scaled[rank].clone(), self.step, are_finite=are_finite
            ),
        )
        totals = [total for total, _ in results]
        assert all(torch.equal(one, totals[0]) for one in totals)
        assert {stays_finite for _, stays_finite in results} == {are_finite}
        if counts:
            self.count(range(self.world))
            self.given += vectors.sum(0)
            total = totals[0].clone()
            total[: self.flat.gradients] /= self.scale * self.whole
            for (name, _), piece in zip(self.flat.parameters, self.flat.pieces, strict=False):
                if name in untouched:
                    total[piece.start : piece.start + piece.numel] = 0  # what the model makes of it
            self.applied += total
            self.step += 1

    def vectors(self, untouched: Collection[str]) -> torch.Tensor:
        """Of all workers."""
        generator = torch.Generator().manual_seed(self.step)
        vectors = torch.randn(self.world, self.flat.length, generator=generator, dtype=torch.float64)
        vectors[:, self.flat.flags.start :] = 1.0
        for index, (name, _) in enumerate(self.flat.parameters):
            if name in untouched:
                piece = self.flat.pieces[index]
                vectors[:, piece.start : piece.start + piece.numel] = 0
                vectors[:, self.flat.flags.start + index] = 0
        return vectors[:1].expand_as(vectors) if self.are_alike else vectors

    def count(self, ranks: Iterable[int]) -> None:
        """The step counts, as these hear."""
        self.told = {str(rank): worker.kept for rank, worker in enumerate(self.workers)}
        for rank in ranks:
            self.workers[rank].hear(self.told)
            self.workers[rank].count(self.step, follows=False)

    def settle(self) -> None:
        assert len({worker.is_settled for worker in self.workers}) == 1
        if self.workers[0].is_settled:
            return
        group = fake_group(self.world)
        rows = on_ranks(self.world, lambda rank: self.workers[rank].settle(group[rank]))
        for worker, row in zip(self.workers, rows, strict=True):
            assert torch.equal(row.view(torch.int64), rows[0].view(torch.int64))
            worker.take(row)

    def resize(self, world: int) -> None:
        """Members come, with the state that all know, or go."""
        self.settle()
        known = self.workers[0].state_dict()
        joiners = [self.new() for _ in range(world - self.world)]
        for joiner in joiners:
            joiner.load_state_dict(known)
        self.workers = [*self.workers[:world], *joiners]
        self.begin()

    def rescale(self, scale: float) -> None:
        """A GradScaler has another scale from now on."""
        self.scale = scale
        for worker in self.workers:
            worker.scale = scale

    def reweigh(self, whole: float) -> None:
        """The microbatches of a step weigh so many times their samples from now on."""
        self.whole = whole
        for worker in self.workers:
            worker.whole = whole

    def lose(self, count: int = 1) -> None:
        """Some die at once."""
        del self.workers[-count:]
        self.begin()

    def missing(self) -> torch.Tensor:
        """What was given, but neither applied nor kept."""
        self.settle()
        kept = self.workers[0].state_dict()["settled"] or {}
        missing = self.given - self.applied
        numel = SIDES[0] * SIDES[1]
        for name in ("residual", "stripe"):
            missing[:numel] -= kept.get(name, torch.zeros(numel, dtype=torch.float64))
        return missing
