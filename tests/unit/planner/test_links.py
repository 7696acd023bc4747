from __future__ import annotations

from itertools import accumulate
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.planner.links import Exchange, Link, Moved, cost_of, labels_s, sent_by, time_of
from rubato.strategies.sizes import Pattern, elements_sent

MEGABIT = 1e6 / 8


def test_the_measurements_of_the_design_are_met() -> None:
    """Four workers, 50 Mb/s and 5 ms; 4 MB of float32: measured 1031 (ring), 2610 (tree), 3884 (a server), 1022 ms."""
    link = Link(0.005, 50 * MEGABIT)
    measured_s: dict[Exchange, float] = {"ring": 1.031, "tree": 2.610, "server": 3.884, "halving_doubling": 1.022}
    for exchange, seconds in measured_s.items():
        assert time_of(exchange, 4, 4e6, link) == pytest.approx(seconds, rel=0.07), exchange


@given(st.sampled_from(get_args(Pattern)), st.integers(1, 16))
def test_ports_move_what_the_strategies_send(pattern: Pattern, workers: int) -> None:
    """What the busiest rank sends; in a tree one after the other, what the root sends and gets."""
    numel = 48 * workers
    busiest = max(elements_sent(pattern, rank, workers, numel) for rank in range(workers))
    assert busiest == max(sent_by(pattern, rank, workers, numel) for rank in range(workers))
    moved = cost_of(pattern, workers, 4 * numel).port_bytes
    if pattern in ("tree", "server"):
        assert moved == 2 * 4 * elements_sent(pattern, 0, workers, numel)
    elif pattern == "halving_doubling" and workers & (workers - 1):
        assert moved >= 4 * busiest
    else:
        assert moved == pytest.approx(4 * busiest, rel=0.03)


@given(st.sampled_from(get_args(Exchange)), st.integers(2, 64), st.floats(1, 1e9))
def test_nothing_is_free_and_more_costs_more(exchange: Exchange, workers: int, size: float) -> None:
    link = Link(1e-3, 1e7, 1e-10)
    assert 0 < time_of(exchange, workers, size, link) < time_of(exchange, workers, 2 * size, link)


def test_with_a_server_on_each_worker_it_is_the_direct_sum() -> None:
    for workers in (2, 3, 5):
        assert cost_of("server", workers, 1e6, servers=5) == cost_of("direct", workers, 1e6), "no more than workers"


def test_one_worker_tells_nobody() -> None:
    assert time_of("ring", 1, 1e6, Link(1.0, 1.0)) == 0


def test_what_was_measured_counts() -> None:
    link = Link(1e-3, 1e7, start_s={"ring": 0.06}, moved={"ring": (Moved(1.5e6, 0.3),)}, measured_workers=4)
    assert time_of("ring", 4, 0, link) == pytest.approx(0.06)
    assert time_of("ring", 7, 0, link) == pytest.approx(0.12), "twice as many messages in a row"
    assert time_of("ring", 4, 1e6, link) - 0.06 == pytest.approx(2 * time_of("ring", 4, 1e6, Link(0.0, 1e7)))
    assert time_of("tree", 4, 0, link) == pytest.approx(8e-3), "which was not measured"


def test_what_was_not_measured_has_the_share_of_what_was() -> None:
    shares = {"ring": 0.2, "tree": 0.4, "direct": 0.6}
    moved = {name: tuple(Moved(size, size / 1e7 / share) for size in (1e5, 1e6)) for name, share in shares.items()}
    moved["direct"] = (Moved(1e5, 0.05), moved["direct"][-1])
    link, bare = Link(0.0, 1e7, moved=moved, measured_workers=4), Link(0.0, 1e7)
    assert time_of("tree", 4, 1e6, link) == pytest.approx(time_of("tree", 4, 1e6, bare) / 0.4)
    for exchange in ("server", "to_first", "from_first"):
        assert time_of(exchange, 4, 1e6, link) == pytest.approx(time_of(exchange, 4, 1e6, bare) / 0.4), exchange
    assert link.moved_s(1e6) == pytest.approx(0.25)
    assert bare.moved_s(1e6) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-6, 1e3)), min_size=1, max_size=4), st.floats(0, 5e9))
def test_what_lies_between_sizes_that_were_measured_takes_what_lies_between_their_times(
    steps: list[tuple[float, float]], size: float
) -> None:
    sizes, times = (list(accumulate(one)) for one in zip(*steps, strict=True))
    link = Link(0.0, 1e7, moved={"ring": tuple(map(Moved, sizes, times))})
    for one, seconds in zip(sizes, times, strict=True):
        assert link.moved_s(one, "ring") == pytest.approx(seconds)
    found, below = link.moved_s(size, "ring"), [time for one, time in zip(sizes, times, strict=True) if one <= size]
    assert found >= (below[-1] if below else 0.0) * (1 - 1e-9)
    if len(below) < len(times):
        assert found <= times[len(below)] * (1 + 1e-9)
    else:
        byte_s = max(steps[-1][1] / steps[-1][0], 1 / link.bytes_per_s)
        assert found - times[-1] == pytest.approx((size - sizes[-1]) * byte_s, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("sizes", [(Moved(0.0, 1.0),), (Moved(2.0, 1.0), Moved(1.0, 2.0)), (Moved(1.0, 0.0),)])
def test_sizes_and_times_that_do_not_rise_are_refused(sizes: tuple[Moved, ...]) -> None:
    with pytest.raises(SpecError, match="moved"):
        Link(0.0, 1e7, moved={"ring": sizes})


@given(st.integers(2, 64))
def test_labels_go_round_a_ring(workers: int) -> None:
    assert labels_s(workers, Link(0.01, 1e9)) == pytest.approx((workers - 1) * 2 * 0.01)
