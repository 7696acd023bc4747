"""Each strategy puts the bytes on the wire that it announces, as the interfaces of its workers count them.

Skipped, loudly, where the kernel or the user is not allowed to make namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.exchanges import exchange
from tests.network import Network, NoNamespaces, network

MOST = 5
"""Workers; fewer leave the others' namespaces empty."""
SHAPES = [[1000, 1000], [1000], [500, 1000], [500]]
ROUNDS = 3
STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in ("auto", "ring", "tree", "halving_doubling", "server")},
    "two servers": {"algorithm": "server", "servers": 2},
    **{name: {"compression": {"method": name, "density": 0.05, "rank": 64}} for name in (
        "fp16", "bf16", "powersgd", "topk", "gtopk", "hierarchical_topk", "sketch", "sketched_sgd", "onebit",
    )},
}  # fmt: skip
SHARE = 0.03
"""By how much headers of packets, acknowledgements and the waits between rounds may exceed what was announced."""
FEW = 6_000
"""Bytes that this comes to, where a worker sends next to nothing."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    try:
        with network(workers=MOST) as net:
            net.enlarge_packets()
            yield net
    except NoNamespaces as error:
        pytest.skip(f"the bytes of strategies are NOT measured here: {error}")


@pytest.mark.parametrize("workers", [4, *(pytest.param(workers, marks=pytest.mark.long) for workers in (2, 3, 5))])
def test_what_is_sent_is_what_was_announced(net: Network, workers: int) -> None:
    answers = exchange(net, workers, STRATEGIES, SHAPES, ROUNDS)
    for name in STRATEGIES:
        for rank, answer in enumerate(answers):
            sent, announced = answer[name]["sent"], answer[name]["announced"]
            assert announced <= sent <= announced * (1 + SHARE) + FEW, f"{name}, rank {rank}: {answer[name]}"
