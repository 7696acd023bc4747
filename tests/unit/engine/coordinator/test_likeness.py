from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator.orders import Terms
from rubato.wire.aggregation import AggregationSpec, CompressionSpec
from rubato.wire.spec import JobSpec
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9


def world(cluster: Cluster) -> int:
    """Members of the present generation."""
    current = cluster.coordinator.job.current
    return current.world if current is not None else 0


def join(cluster: Cluster, *arithmetic: dict[str, str]) -> None:
    """A second worker is to join a first; they compute as told."""
    cluster.arithmetic.update(zip(("1.1", "1.2"), arithmetic, strict=True))
    cluster.run(lambda: cluster.coordinator.job.step >= 2 and cluster.is_settled)
    cluster.ask(workers=2)


GPU = {"device": "cuda", "gpu": "NVIDIA H200", "cpu": "AuthenticAMD AVX512", "precision": "matmul ieee"}
ALIEN = [
    ({"device": "cpu", "cpu": GPU["cpu"]}, "its device is cpu, that of w1.1 is cuda: set device: cpu"),
    ({**GPU, "gpu": "NVIDIA L4"}, "its GPU is NVIDIA L4, that of w1.1 is NVIDIA H200: their bits would differ"),
    ({**GPU, "precision": "matmul tf32"}, "its precision of float32 is matmul tf32, that of w1.1 is matmul ieee"),
]


@pytest.mark.parametrize(("arithmetic", "refusal"), ALIEN)
def test_a_worker_of_other_arithmetic_is_refused_with_what_to_do(arithmetic: dict[str, str], refusal: str) -> None:
    cluster = Cluster(random.Random(9), workers=1, total_steps=ENDLESS)
    join(cluster, GPU, arithmetic)
    cluster.run(lambda: any(event.kind == "worker.lost" for event in cluster.events))
    lost = next(event for event in cluster.events if event.kind == "worker.lost")
    assert refusal in lost.message
    assert "w1.2" in lost.message


@pytest.mark.parametrize("arithmetic", [told for told, _ in ALIEN[1:]] + [{}])
def test_without_equal_bits_to_keep_other_arithmetic_is_welcome(arithmetic: dict[str, str]) -> None:
    cluster = Cluster(random.Random(9), workers=1, total_steps=ENDLESS, reproducible=False)
    join(cluster, GPU, arithmetic)
    cluster.run(lambda: cluster.is_settled and world(cluster) == 2)
    assert not any(event.kind == "worker.unlike" for event in cluster.events)


@pytest.mark.parametrize(
    ("arithmetic", "refusal"),
    [
        ALIEN[0],
        *((told, "with powersgd each would go on with weights of its own") for told, _ in ALIEN[1:]),
    ],
)
def test_where_each_computes_what_all_take_it_is_refused(arithmetic: dict[str, str], refusal: str) -> None:
    assert refusal in refused(GPU, arithmetic)


def test_there_the_kind_of_processor_counts_where_it_is_what_computes() -> None:
    one, other = ({"device": "cpu", "cpu": cpu} for cpu in ("GenuineIntel AVX2", "AuthenticAMD AVX512"))
    assert "its kind of processor is AuthenticAMD AVX512, that of w1.1 is GenuineIntel AVX2" in refused(one, other)
    cluster = needing_alike()
    join(cluster, GPU, {**GPU, "cpu": "GenuineIntel AVX2"})
    cluster.run(lambda: cluster.is_settled and world(cluster) == 2)


def needing_alike() -> Cluster:
    spec = JobSpec(
        name="j",
        entrypoint="train.py",
        reproducible=False,
        aggregation=AggregationSpec(compression=CompressionSpec("powersgd")),
    )
    alike_for = Terms.of("j", 1, spec).alike_for
    return Cluster(random.Random(9), workers=1, total_steps=ENDLESS, reproducible=False, alike_for=alike_for)


def refused(*arithmetic: dict[str, str]) -> str:
    """Why the second one is."""
    cluster = needing_alike()
    join(cluster, *arithmetic)
    cluster.run(lambda: any(event.kind == "worker.lost" for event in cluster.events))
    return next(event for event in cluster.events if event.kind == "worker.lost").message


def test_another_kind_of_processor_is_told_and_not_refused() -> None:
    cluster = Cluster(random.Random(9), workers=1, total_steps=ENDLESS)
    join(cluster, {"device": "cpu", "cpu": "GenuineIntel AVX2"}, {"device": "cpu", "cpu": "AuthenticAMD AVX512"})
    cluster.run(lambda: cluster.is_settled and world(cluster) == 2)
    (told,) = [event for event in cluster.events if event.kind == "worker.unlike"]
    assert (
        "w1.2 computes on another kind of processor (AuthenticAMD AVX512) than w1.1 (GenuineIntel AVX2)" in told.message
    )
