"""How exchanges on slow links are told; nothing is measured here."""

from __future__ import annotations

from typing import get_args

from benchmarks.programs.exchanges import CPU, layout_of_shapes, vector_of
from benchmarks.strategies import (
    NAMES,
    PROFILE,
    SHAPES,
    STRATEGIES,
    Emulated,
    Measured,
    Seen,
    machines_of,
    spec_of,
    tables,
)
from rubato.engine.aggregation import compressor_of
from rubato.planner.links import Link
from rubato.planner.methods import Strategy, exchange_s
from rubato.planner.options import name_of
from rubato.strategies.peers import Alone
from rubato.strategies.sizes import count_of
from rubato.wire.aggregation import AggregationSpec, Algorithm, Method
from rubato.wire.codec import from_json

WORKERS = 4
COMPUTED_S, PASSED_S = 0.5, 0.25


def seen_on(link: Emulated | None, times: float) -> Measured:
    """The messages take so many times as long as is predicted of the link; what is computed takes nothing there."""
    told, probed = {}, link.as_planned if link else Link(0.0, 1e15)
    for one in STRATEGIES:
        messages_s = times * exchange_s(one, PROFILE, WORKERS, probed) if link else PASSED_S
        told[name_of(one)] = Seen(messages_s + (0.0 if link else COMPUTED_S), messages_s, 1000.0)
    return Measured(probed, told)


def test_every_aggregation_is_measured() -> None:
    assert set(NAMES) == {*get_args(Algorithm), *get_args(Method)} - {"none"}
    for one in STRATEGIES:
        assert from_json(AggregationSpec, spec_of(one), strict=True).name == name_of(one)


def test_a_threshold_sends_as_much_as_may_travel() -> None:
    layout = layout_of_shapes(SHAPES)
    (told,) = (one for one in STRATEGIES if name_of(one) == "threshold")
    compressor = compressor_of(from_json(AggregationSpec, spec_of(told), strict=True), layout, told.density, [0], 0)
    vector = vector_of(0, layout)
    state = compressor.start(vector)
    for step in range(3):
        total, state = compressor.exchange(Alone(CPU), vector, state, step)
        sent = sum(int(total[piece.start : piece.start + piece.numel].count_nonzero()) for piece in layout.pieces)
        assert sent == count_of(told.density, layout.numel)


def test_workers_of_one_strategy_share_machines() -> None:
    assert machines_of(Strategy(method="hierarchical_topk", machines=2), WORKERS) == (1, 1, 2, 2)
    assert machines_of(Strategy(method="topk"), WORKERS) == (1, 2, 3, 4)


def test_what_is_computed_is_told_apart_from_the_messages() -> None:
    links = [Emulated(mbit, latency) for latency in (0, 5) for mbit in (10, 100)]
    text = tables(seen_on(None, 1.0).seen, {link: seen_on(link, 1.25) for link in links}, WORKERS)
    for latency in (0, 5):
        assert text.count(f"Latency {latency} ms one way:") == 1
    heads = "| sent, kB | no limit | 10 Mb/s: measured, predicted | 100 Mb/s: measured, predicted |"
    assert text.count(f"| exchange {heads}") == text.count(f"| its messages alone {heads}") == 2
    assert all(text.count(f"| `{name_of(one)}` | 1 | ") == 4 for one in STRATEGIES)
    apart, whole = text.rsplit("\n\n", 1)[1].split("; with what is computed ")
    assert apart == "Measured against predicted: the messages 1.25 times apart at the median, 1.25 at most"
    assert whole != "1.25 times apart at the median, 1.25 at most."
