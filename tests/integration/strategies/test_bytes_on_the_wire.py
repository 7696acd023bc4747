"""Each strategy puts the bytes on the wire that it announces and that the planner predicts, as interfaces count them.

Skipped, loudly, where the kernel or the user is not allowed to make namespaces. `test_bytes_of_jobs` has what is no
`aggregation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from groups import fake_group, on_ranks

from benchmarks.programs.exchanges import WARM, layout_of_shapes, vector_of
from rubato.checkpoint.digest import digest64
from rubato.engine.aggregation import compressor_of
from rubato.planner.links import sent_by
from rubato.planner.methods import Strategy, sent_bytes
from rubato.planner.profile import Layer, Profile
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.sizes import INDEX_BYTES, count_of
from rubato.wire.aggregation import AggregationSpec, CompressionSpec
from rubato.wire.codec import from_json
from tests.exchanges import exchange
from tests.network import Network

SHAPES = [[1000, 1000], [1000], [500, 1000], [500]]
MODEL = Profile((Layer("all", tuple(map(tuple, SHAPES)), 1e-6, 1e-6),))
ROUNDS = 3
LONG = (pytest.mark.long, pytest.mark.timeout(240 * ROUNDS))
DENSITY = 0.05
STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in ("auto", "ring", "tree", "halving_doubling", "server", "native")},
    "two servers": {"algorithm": "server", "servers": 2},
    "three servers": {"algorithm": "server", "servers": 3},
    **{name: {"compression": {"method": name, "density": DENSITY, "rank": 64}} for name in (
        "fp16", "bf16", "powersgd", "topk", "gtopk", "hierarchical_topk", "sketch", "sketched_sgd", "onebit",
    )},
    **{f"{name} with momentum": {"compression": {"method": name, "density": DENSITY, "momentum": 0.9}} for name in (
        "topk", "sketch", "sketched_sgd",
    )},
    **{f"sketch by {name}": {"algorithm": name, "compression": {"method": "sketch", "density": DENSITY}} for name in (
        "ring", "halving_doubling", "native",
    )},
    "threshold": {"compression": {"method": "threshold", "threshold": 1e-6}},
}  # fmt: skip
MUCH_LIKE_OTHERS = ("server", "two servers", "bf16", "sketch with", "sketched_sgd with", "sketch by")
"""How names begin that the short test leaves out."""
ELEMENT_BYTES = 4
MOST = 0.1
"""Of the elements that grow beyond a threshold, the share of all that travels in a step."""
TO_EACH = 2_000
"""Bytes to each other worker by which messages and the waits between rounds exceed what was announced."""


def overhead(workers: int) -> int:
    """Bytes by which what a worker sends may exceed what was announced."""
    return TO_EACH * (workers - 1)


def planned(told: dict[str, Any], workers: int) -> float:
    """Bytes that the busiest worker sends, as the planner says."""
    spec = from_json(AggregationSpec, told, strict=True)
    chosen, algorithm = spec.compression, spec.algorithm
    if algorithm == "server":
        return sent_bytes(Strategy(servers=spec.servers), MODEL, workers)
    if chosen.method == "none":
        return sent_bytes(Strategy(algorithm="direct" if algorithm == "auto" else algorithm), MODEL, workers)
    strategy = Strategy(
        chosen.method,
        density=MOST if chosen.method == "threshold" else chosen.density,
        rank=chosen.rank,
        rows=chosen.rows,
        columns=None if chosen.columns == "auto" else chosen.columns,
        momentum=chosen.momentum > 0,
        sketch_algorithm="tree" if algorithm == "auto" else algorithm,
    )
    return sent_bytes(strategy, MODEL, workers)


def of_a_threshold(workers: int) -> float:
    """Bytes that each worker sends: how many elements, a word of each, and what goes dense."""
    words = INDEX_BYTES * count_of(MOST, MODEL.compressed)
    dense = ELEMENT_BYTES * (MODEL.parameters - MODEL.compressed)
    return sent_by("all_gather", 0, workers, 8 + words) + sent_by("direct", 0, workers, dense)


@pytest.mark.parametrize(
    ("workers", "rounds", "left_out"),
    [(3, 2, MUCH_LIKE_OTHERS), *(pytest.param(workers, ROUNDS, (), marks=LONG) for workers in (2, 3, 4, 5))],
    ids=lambda value: str(value) if isinstance(value, int) else "short" if value else "long",
)
def test_what_is_sent_is_what_was_announced(net: Network, workers: int, rounds: int, left_out: tuple[str, ...]) -> None:
    strategies = {name: told for name, told in STRATEGIES.items() if not name.startswith(left_out)}
    answers = exchange(net, workers, strategies, SHAPES, rounds, timeout_s=200.0 * rounds)
    for name in strategies:
        for rank, answer in enumerate(answers):
            sent, announced = answer[name]["sent"], answer[name]["announced"]
            if announced is None:  # it depends on the values, here so many that as much travels as may
                assert name == "threshold"
                announced = of_a_threshold(workers)
            assert announced <= sent <= announced + overhead(workers), f"{name}, rank {rank}: {answer[name]}"
            alone = answer[name]["messages_sent"]
            assert abs(alone - sent) <= overhead(workers), f"{name}, rank {rank}, alone: {answer[name]}"
        told, busiest = planned(STRATEGIES[name], workers), max(answer[name]["sent"] for answer in answers)
        assert abs(busiest - told) <= overhead(workers), f"{name}: {busiest} bytes, planned {told}"
    assert len({answer["threshold"]["digest"] for answer in answers}) == 1


@pytest.mark.long
@pytest.mark.parametrize("machines", [(1, 1, 2, 2), (1, 1, 1, 2, 2), (1, 2, 1, 2), (1, 1, 2, 2, 3)])
def test_between_machines_of_several_workers_only_the_largest_elements_travel(
    net: Network, machines: Sequence[int]
) -> None:
    """The interface of a machine sends what all its workers do; within it a sum is dense."""
    shapes, workers = [[1000, 1000], [500, 1000]], len(machines)
    spec = AggregationSpec(compression=CompressionSpec("hierarchical_topk", density=DENSITY))
    told = {"hierarchical": {"compression": {"method": "hierarchical_topk", "density": DENSITY}}}
    answers = [one["hierarchical"] for one in exchange(net, workers, told, shapes, ROUNDS, machines=machines)]

    layout = layout_of_shapes(shapes)
    method, group = compressor_of(spec, layout, DENSITY, machines, seed=0), fake_group(workers)
    assert isinstance(method, HierarchicalTopK)
    for rank, machine in enumerate(machines):
        here = [other for other, place in enumerate(machines) if place == machine]
        announced = sum(method.bytes_between_nodes(other, ELEMENT_BYTES) for other in here)
        sent = answers[rank]["sent"]
        assert announced <= sent <= announced + overhead(workers) * len(here), (machines, rank, answers[rank])
        dense = 2 * ELEMENT_BYTES * layout.numel * (workers - 1) / workers
        assert sent < dense / 2

    def alone(rank: int) -> int:
        vector = vector_of(rank, layout)
        state = method.start(vector)
        for number in range(WARM + ROUNDS):
            total, state = method.exchange(group[rank], vector, state, number)
        return digest64([total])

    assert {one["digest"] for one in answers} == set(on_ranks(workers, alone)), "the bits of threads of one process"
