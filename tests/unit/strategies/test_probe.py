"""Links are measured over real gloo; how fast they are is the machine's, that the rest fits together is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
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
    assert link.moved.keys() <= link.start_s.keys(), "on a loopback more may take no longer"
    assert link.start_s.keys() < set(get_args(Exchange))
    assert 0 < link.latency_s < 1
    assert link.bytes_per_s > 1e4
    sizes = ("small", "sixteenth", "quarter", "large")
    for name in (f"link_{exchange}_{size}_s" for exchange in link.start_s for size in sizes):
        assert 0 < found[0][name] == found[1][name], "that of the slowest"
    assert found[0]["link_large_bytes"] == found[1]["link_large_bytes"], "all measure with the same size"


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
