"""Links are measured over real gloo; how fast they are is the machine's, that the rest fits together is not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
from groups import fake_group, gloo_group, on_ranks

from rubato.engine.comm import Message
from rubato.planner.links import Exchange
from rubato.planner.measured import link_of
from rubato.strategies import probe
from rubato.strategies.sums import PATTERNS


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are soon large enough."""
    monkeypatch.setattr(probe, "LONG_S", 0.001)


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_measured_makes_a_link(world: int) -> None:
    with gloo_group(world) as group:
        found = on_ranks(world, lambda rank: probe.probe(group[rank], [0] * world))
    link = link_of([found[0]])
    assert link.measured_workers == world
    assert link.start_s.keys() == {*PATTERNS, "all_gather"}
    assert link.start_s.keys() < set(get_args(Exchange))
    assert 0 < link.latency_s < 1
    assert link.bytes_per_s > 1e4
    sizes = ("small", "sixteenth", "quarter", "large")
    for name in (f"link_{exchange}_{size}_s" for exchange in link.start_s for size in sizes):
        assert 0 < found[0][name] == found[1][name], "all tell the same time"
    assert found[0]["link_large_bytes"] == found[1]["link_large_bytes"], "all measure with the same size"


def test_vectors_of_three_sizes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_time_of", lambda comm, call, vector: 1e-6 * vector.numel())
    with gloo_group(2) as group:
        found = on_ranks(2, lambda rank: probe.probe(group[rank], [0, 0]))[0]
    assert found["link_large_bytes"] == 4 * found["link_quarter_bytes"] == 16 * found["link_sixteenth_bytes"]
    assert {len(sizes) for sizes in link_of([found]).moved.values()} == {3}


def test_an_exchange_took_as_long_as_for_the_slowest() -> None:
    with gloo_group(3) as group:
        times = on_ranks(3, lambda rank: probe._time_of(group[rank], lambda _: time.sleep(0.05 * rank), torch.ones(1)))
    assert len(set(times)) == 1
    assert times[0] >= 0.1


@pytest.mark.parametrize(("hosts", "far"), [([1, 1, 1], 1), ([1, 1, 2], 2), ([1, 2, 2], 1)])
def test_the_longest_way_is_measured(hosts: list[int], far: int) -> None:
    group = fake_group(3)
    sent: list[list[list[int]]] = [[], [], []]
    for rank, comm in enumerate(group):
        pass_on = comm.pass_messages

        def watched(
            received: Sequence[Message], told: Sequence[Message], *, rank: int = rank, pass_on: object = pass_on
        ) -> None:
            sent[rank].append([other for other, _ in told])
            pass_on(received, told)  # type: ignore[operator]

        comm.pass_messages = watched  # type: ignore[method-assign, assignment]
    on_ranks(3, lambda rank: probe.probe(group[rank], hosts))
    assert [sent[rank][:2] for rank in (0, far)] == [[[far], []], [[], [0]]]
