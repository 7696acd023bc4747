from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
import torch
from groups import fake_group, on_ranks
from hypothesis import given
from hypothesis import strategies as st

from rubato.planner.links import Link, cost_of, sent_by
from rubato.planner.methods import Strategy, exchange_s, messages, sent_bytes, settlement_s, vectors_of
from rubato.planner.predict import Saves, predict
from rubato.planner.profile import Layer, Profile
from rubato.strategies.cast import Cast
from rubato.strategies.compressor import Compressor
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import layout_of
from rubato.strategies.onebit import OneBit
from rubato.strategies.powersgd import PowerSGD
from rubato.strategies.sketch import Sketch
from rubato.strategies.threshold import Threshold
from rubato.strategies.topk import TopK
from rubato.wire.aggregation import Method
from rubato.wire.local_updates import LED, LocalMethod

METHODS: tuple[Method, ...] = get_args(Method)
COMPRESSING = sorted(set(METHODS) - {"none"})
TELLING = sorted(set(COMPRESSING) - {"threshold"})
"""Those of which what they send does not depend on the values."""
SHAPES = [(512, 256), (512,), (64, 512), (64,)]
MODEL = Profile(
    (
        Layer("first", ((512, 256), (512,)), 1e-4, 2e-4),
        Layer("last", ((64, 512), (64,)), 5e-5, 1e-4),
    ),
    start_s=1e-3,
    update_s=1e-9,
    codec_s={"topk": 5e-9},
)
FAST, SLOW = Link(0.0, 1e15), Link(1e-3, 1e6)


def compressor_of(method: Method, momentum: float = 0.0, nodes: Sequence[int] = (0,)) -> Compressor:
    parameters, start = [], 0
    for number, shape in enumerate(SHAPES):
        parameters.append((str(number), start, shape))
        start += torch.Size(shape).numel()
    layout = layout_of(start, parameters)
    makes: dict[Method, Compressor] = {
        "fp16": Cast(layout, torch.float16),
        "bf16": Cast(layout, torch.bfloat16),
        "powersgd": PowerSGD(layout, 4),
        "topk": TopK(layout, 0.001, momentum),
        "gtopk": GlobalTopK(layout, 0.001),
        "hierarchical_topk": HierarchicalTopK(layout, 0.001, nodes),
        "threshold": Threshold(layout, 0.001),
        "onebit": OneBit(layout),
        "sketch": Sketch(layout, 0.001, momentum=momentum),
        "sketched_sgd": Sketch(layout, 0.001, momentum=momentum, is_central=True),
    }
    return makes[method]


@pytest.mark.parametrize("method", TELLING)
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_it_counts_the_bytes_that_the_compressors_send(method: Method, workers: int) -> None:
    """Of the busiest rank; ports of trees and servers move what comes in and what goes out one after the other."""
    compressor = compressor_of(method, nodes=range(workers))
    sent = [compressor.sent_bytes(rank, workers, 4) or 0 for rank in range(workers)]
    assert sent_bytes(Strategy(method), MODEL, workers) == pytest.approx(max(sent), rel=0.03)
    moved = sum(
        cost_of(one.exchange, workers, one.size).port_bytes for one in messages(Strategy(method), MODEL, workers)
    )
    if method in ("gtopk", "sketch"):
        dense = cost_of("direct", workers, 4 * compressor.layout.dense_numel).port_bytes
        assert (moved - dense) / 2 == pytest.approx(max(sent) - dense, rel=0.03)
    elif method == "sketched_sgd":
        dense = cost_of("direct", workers, 4 * compressor.layout.dense_numel).port_bytes
        into_first = (workers - 1) * (sent[1] - dense)
        assert moved - dense == pytest.approx(sent[0] - dense + into_first, rel=0.03)
    else:
        assert moved == pytest.approx(max(sent), rel=0.03)


@pytest.mark.parametrize("workers", [2, 4])
def test_of_a_threshold_the_share_that_grows_beyond_it_is_told_and_how_many_these_are(workers: int) -> None:
    """A tenth at most: here all of them do."""
    vector = torch.ones(MODEL.parameters)

    def sent(rank: int) -> int:
        method = compressor_of("threshold")
        method.exchange(group[rank], vector, method.start(vector), 0)
        return group[rank].sent_bytes

    group = fake_group(workers)
    told = sent_bytes(Strategy("threshold", density=0.1), MODEL, workers)
    assert max(on_ranks(workers, sent)) == pytest.approx(told, rel=0.001)


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2)])
def test_workers_of_a_machine_share_its_port(nodes: Sequence[int]) -> None:
    method, machines = compressor_of("hierarchical_topk", nodes=nodes), len(set(nodes))
    assert isinstance(method, HierarchicalTopK)
    strategy = Strategy("hierarchical_topk", machines=machines)
    lists, _ = messages(strategy, MODEL, len(nodes))
    sent = sum(method.bytes_between_nodes(rank, 4) for rank, node in enumerate(nodes) if node == 0)
    assert sent == pytest.approx(cost_of(lists.exchange, machines, lists.size).port_bytes, rel=0.01)
    alone = Strategy("hierarchical_topk")
    assert exchange_s(strategy, MODEL, len(nodes), SLOW) < exchange_s(alone, MODEL, len(nodes), SLOW)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("method", COMPRESSING)
def test_it_counts_what_compressors_keep(method: Method, momentum: float) -> None:
    assert Strategy(method, momentum=momentum > 0).kept_parts == len(compressor_of(method, momentum).own)


@given(
    st.sampled_from(
        [
            Strategy(),
            Strategy(tree=24),
            Strategy(algorithm="ring"),
            Strategy(algorithm="halving_doubling"),
            Strategy(servers=1),
            Strategy(servers=3),
            *(Strategy(method) for method in METHODS),
            Strategy("sketch", sketch_algorithm="halving_doubling"),
            Strategy(local="diloco", sync_every=4, tree=24),
            Strategy(local="synchronous", sync_every=4),
            Strategy(local="asynchronous", sync_every=16),
        ]
    ),
    st.integers(2, 12),
)
def test_the_busiest_is_one_of_a_few(strategy: Strategy, workers: int) -> None:
    """No rank sends more than those that are looked at."""
    told, servers = messages(strategy, MODEL, workers), max(1, strategy.servers)
    vectors: tuple[int, ...] = vectors_of(strategy.tree, workers)
    if strategy.local in LED:
        vectors = (1, *(0,) * (workers - 1))
    sent = [
        sum(sent_by(one.exchange, rank, workers, one.size, servers, vectors[rank]) for one in told)
        for rank in range(workers)
    ]
    assert sent_bytes(strategy, MODEL, workers) == pytest.approx(max(sent), abs=workers * len(told)), "but for rounding"


@given(st.sampled_from(METHODS), st.integers(1, 16), st.sampled_from([FAST, SLOW]))
def test_terms_add_up_and_one_worker_tells_nobody(method: Method, workers: int, link: Link) -> None:
    found = predict(MODEL, link, Strategy(method), workers, 64, 16)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed_s + found.codec_s + found.update_s)
    assert found.binding[1] <= 1
    assert workers > 1 or found.exposed_s == 0


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_compresses_as_several_do(method: Method) -> None:
    """The engine asks the compressor there, too; of whole sums there is nothing to compute, nor of local updates."""
    measured = replace(MODEL, codec_s=dict.fromkeys(COMPRESSING, 5e-9), merge_s={"topk": 1e-9, "gtopk": 1e-9})
    codec_s = 0.0 if method == "none" else 5e-9 * MODEL.compressed
    assert predict(measured, FAST, Strategy(method), 1, 64, 16).codec_s == pytest.approx(codec_s), "no merges"
    local = [Strategy(local=one) for one in get_args(LocalMethod)]
    for whole in (Strategy(algorithm="ring"), Strategy(servers=1), *local):
        assert predict(measured, FAST, whole, 1, 64, 16).codec_s == 0


def test_a_dense_exchange_hides_behind_the_pass_and_a_compressed_one_does_not() -> None:
    link = Link(1e-6, 1e10)
    dense = predict(MODEL, link, Strategy(), 4, 4096, 4)
    sparse = predict(MODEL, link, Strategy("topk"), 4, 4096, 4)
    assert dense.exposed_s < 0.01 * dense.compute_s
    assert sparse.codec_s == pytest.approx(5e-9 * (512 * 256 + 64 * 512))
    assert sparse.step_s > dense.step_s, "why compression so often loses"


def test_on_a_slow_link_compression_wins_and_the_exchange_binds() -> None:
    dense = predict(MODEL, SLOW, Strategy(), 4, 64, 4)
    assert dense.binding[0] == "exchange"
    assert predict(MODEL, SLOW, Strategy("topk"), 4, 64, 4).step_s < dense.step_s / 10
    assert predict(MODEL, SLOW, Strategy("fp16"), 4, 64, 4).exposed_s == pytest.approx(dense.exposed_s / 2, rel=0.1)


def test_local_updates_share_an_exchange_among_steps() -> None:
    plain = predict(MODEL, SLOW, Strategy(algorithm="ring"), 4, 64, 4)
    local = predict(MODEL, SLOW, Strategy(local="local_sgd", sync_every=100), 4, 6400, 4)
    assert local.compute_s == pytest.approx(100 * plain.compute_s)
    assert local.update_s == pytest.approx(100 * plain.update_s)
    assert local.exposed_s == pytest.approx(plain.exposed_s, rel=0.2)
    with_state = replace(MODEL, state_bytes=3 * MODEL.element_bytes * MODEL.parameters)
    adam = predict(with_state, SLOW, Strategy(local="diloco", sync_every=100), 4, 6400, 4)
    assert adam.exposed_s == pytest.approx(3 * local.exposed_s, rel=0.1), "what optimizers keep travels, too"


@pytest.mark.parametrize(
    ("link", "update_s", "short"), [(FAST, 0.0, "workers"), (SLOW, 0.0, "link"), (FAST, 1e-3, "server")]
)
def test_of_asynchronous_updates_workers_link_or_server_are_short(link: Link, update_s: float, short: str) -> None:
    model = replace(MODEL, update_s=update_s)
    one, three, nine = (
        predict(model, link, Strategy(local="asynchronous", sync_every=100), workers, 6400, 16) for workers in (1, 3, 9)
    )
    assert one.exposed_s == 0.0
    vector_s = MODEL.element_bytes * MODEL.parameters / link.bytes_per_s
    if short == "workers":
        assert three.step_s == pytest.approx(one.step_s / 2, rel=0.1)
        assert nine.step_s < three.step_s / 2
    elif short == "link":
        assert nine.step_s == pytest.approx(three.step_s, rel=0.1)
        assert nine.step_s > 100 * vector_s
    else:
        assert nine.step_s == pytest.approx(100 * update_s * MODEL.parameters, rel=0.1)


def test_what_is_averaged_travels_in_the_type_of_the_vector() -> None:
    """A model of bfloat16, with AdamW: 2 bytes of each weight and of two moments, which travel as 4."""
    vector = MODEL.vector_bytes
    stored = replace(MODEL, state_bytes=3 * vector // 2)
    told = replace(stored, averaged_bytes=3 * vector)
    for local in ("local_sgd", "diloco", "synchronous", "asynchronous", "layer_separation"):
        strategy = Strategy(local=local, sync_every=8)
        assert messages(strategy, told, 4)[-1].size == 2 * messages(strategy, stored, 4)[-1].size == 3 * vector
    stream = Strategy(local="streaming_diloco", sync_every=8)
    assert settlement_s(stream, told, 4, SLOW) > 1.9 * settlement_s(stream, stored, 4, SLOW)
    assert messages(stream, told, 4)[-1].size == vector
    assert replace(MODEL, averaged_bytes=1).closing_bytes == vector, "gradients travel at least"


def test_of_a_stream_a_step_sends_a_fragment() -> None:
    with_state = replace(MODEL, state_bytes=3 * MODEL.element_bytes * MODEL.parameters)
    (whole,) = messages(Strategy(local="diloco", sync_every=8), with_state, 4)
    (fragment,) = messages(Strategy(local="streaming_diloco", sync_every=8, fragments=4), with_state, 4)
    assert fragment.size == pytest.approx(whole.size / 12, rel=1e-3), "a quarter, and nothing that optimizers keep"


@pytest.mark.parametrize("delay", [1, 3, 7])
def test_a_delay_hides_as_much_of_the_exchange_as_its_updates_take(delay: int) -> None:
    told = Strategy(local="streaming_diloco", sync_every=8, fragments=4)
    link = Link(0.001, 1e6)
    said_s = 6 * link.latency_s  # of four workers: labels, or headers
    plain = predict(MODEL, link, told, 4, 64, 4)
    delayed = predict(MODEL, link, replace(told, delay=delay), 4, 64, 4)
    hidden_s = delay * (plain.compute_s + plain.update_s) / 8
    assert delayed.exposed_s == pytest.approx(max(said_s, plain.exposed_s - hidden_s) + said_s), "labels of its own"
    assert delayed.compute_s == plain.compute_s


def test_backups_wait_for_no_slow_worker_and_have_larger_pieces() -> None:
    def step_s(backups: int, spread: float, workers: int = 9) -> float:
        strategy = Strategy(local="synchronous", sync_every=100, backups=backups)
        return predict(replace(MODEL, spread=spread), FAST, strategy, workers, 6400, 16, several=True).step_s

    assert step_s(0, 0.0) < step_s(1, 0.0) == pytest.approx(step_s(0, 0.0) * 8 / 7, rel=0.05)
    assert step_s(1, 2.0) < step_s(0, 2.0), "a slow one in eight costs more than an eighth"
    assert step_s(0, 0.0, workers=2) == pytest.approx(step_s(0, 0.0, workers=1), rel=0.05)


def test_synchronous_updates_send_weights_and_gradients_each_time() -> None:
    (pushed, pulled, closing) = messages(Strategy(local="synchronous", sync_every=10), MODEL, 4)
    vector = MODEL.element_bytes * MODEL.parameters
    assert (pushed.size, pulled.size) == (10 * vector, 9 * vector), "at the beginning all have the same"
    assert closing.size >= vector


@pytest.mark.parametrize("method", ["none", *TELLING])
def test_a_vector_of_twice_the_digits_sends_as_compressors_do(method: Method) -> None:
    double, dense = replace(MODEL, element_bytes=8), method == "none"
    compressors = [] if dense else [compressor_of(method, nodes=range(4))]
    sent = [one.sent_bytes(rank, 4, 8) for one in compressors for rank in range(4)]
    sent += [round(8 * 2 * MODEL.parameters * 3 / 4)] if dense else []
    assert sent_bytes(Strategy(method), double, 4) == pytest.approx(max(one or 0 for one in sent), rel=0.03)


def test_a_count_that_divides_the_microbatches_is_worth_more_than_the_next_one() -> None:
    four, five = (predict(MODEL, FAST, Strategy(), workers, 64, 16) for workers in (4, 5))
    assert five.compute_s == four.compute_s, "four microbatches for the slowest of both"


def test_the_slowest_counts() -> None:
    even, uneven = (predict(replace(MODEL, spread=one), FAST, Strategy(), 8, 64, 16) for one in (0.0, 0.1))
    assert uneven.compute_s == pytest.approx(even.compute_s * (1 + 0.1 * 2.039), rel=1e-3)


def test_one_pass_over_all_microbatches_begins_once() -> None:
    each, whole = (predict(MODEL, FAST, Strategy(), 2, 64, 16, several=several) for several in (False, True))
    assert each.compute_s - whole.compute_s == pytest.approx(7 * 2e-3)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Strategy(), 2 * 4),
        (Strategy(algorithm="tree"), 4 * 3),
        (Strategy("topk"), 4 * 3),
        (Strategy(local="diloco", sync_every=8), 2 * 4),
        (Strategy(local="streaming_diloco", sync_every=8), 4 * 3),
    ],
)
def test_what_the_engine_says_besides_takes_latencies(strategy: Strategy, words: int) -> None:
    """Of four workers: labels and a confirmation, or labels and headers."""
    on_gpu, slow = replace(MODEL, device="cuda"), Link(0.05, 1e6)
    told = predict(on_gpu, slow, strategy, 4, 64, 4)
    assert told.exposed_s - exchange_s(strategy, on_gpu, 4, slow) == pytest.approx(words * slow.latency_s)
    on_cpu = predict(MODEL, slow, strategy, 4, 64, 4)
    assert on_cpu.exposed_s == pytest.approx(told.exposed_s, abs=on_cpu.compute_s), (
        "labels of buckets that overlap, too"
    )


def test_words_take_what_was_measured_of_a_ring() -> None:
    measured = replace(SLOW, start_s={"ring": 0.6}, measured_workers=4)
    strategy = Strategy(algorithm="tree")
    more = predict(MODEL, measured, strategy, 4, 64, 4).exposed_s - predict(MODEL, SLOW, strategy, 4, 64, 4).exposed_s
    assert more == pytest.approx(2 * 0.3 - 12e-3), "six messages took 0.6 s, and two all-gathers have three each"


_SHAPES = (((512, 512), (512,)), ((256, 512), (256,)), ((10, 256), (10,)))
PACED = Profile(tuple(Layer(str(at), one, 2e-3 / 3, 2e-3 / 3) for at, one in enumerate(_SHAPES)))
"""Of `make bench-strategy-steps`: 4 ms a sample, shared by three layers."""


@pytest.mark.parametrize(("mbit", "milliseconds"), [(10, 10030), (50, 2031)])
def test_asynchronous_updates_take_the_server_s_link_for_gradients_and_then_for_weights(
    mbit: float, milliseconds: float
) -> None:
    """docs/benchmarks.md, 4 workers, 0 ms: milliseconds of 64 samples, of 512 in 32 updates."""
    strategy = Strategy(local="asynchronous", sync_every=32)
    told = predict(PACED, Link(0.0, mbit * 1e6 / 8), strategy, 4, 512, 4, several=True).step_s / 8
    assert 1e3 * told == pytest.approx(milliseconds, rel=0.05)


def test_answers_of_a_server_are_a_head_and_then_weights() -> None:
    far = Link(0.05, 1e15)
    asynchronous = predict(MODEL, far, Strategy(local="asynchronous", sync_every=100), 2, 6400, 16)
    assert asynchronous.exposed_s == pytest.approx(100 * 4 * 0.05 + 2 * 2 * 0.05 + 2 * 2 * 0.05, rel=0.01)
    synchronous = predict(MODEL, far, Strategy(local="synchronous", sync_every=100), 3, 6400, 16)
    assert synchronous.exposed_s == pytest.approx((100 * 4 - 2) * 0.05 + 2 * 2 * 0.05 + 2 * 3 * 0.05, rel=0.01)


RESNET = Profile((Layer("all", ((25_000, 1024),), 1e-3, 2e-3),), codec_s={"topk": 1e-9})
FAST_ETHERNET = Link(1e-4, 100e6 / 8)


def test_checkpoints_cost_what_is_settled() -> None:
    """102 MB to and fro on 100 Mb/s: 12 s of every 30 s."""
    strategy = Strategy("topk")
    assert settlement_s(strategy, RESNET, 4, FAST_ETHERNET) == pytest.approx(12.3, abs=0.1)
    never, often, seldom, fixed, always = (
        predict(RESNET, FAST_ETHERNET, strategy, 4, 64, 16, saves=saves)
        for saves in (Saves(), Saves(30.0), Saves(300.0), Saves(30.0, every_steps=10), Saves(5.0))
    )
    assert never.settling_s == 0
    assert often.settling_s / often.step_s == pytest.approx(12.3 / 30, rel=0.01)
    assert seldom.settling_s / seldom.step_s == pytest.approx(12.3 / 300, rel=0.01)
    assert fixed.settling_s == pytest.approx(1.23, abs=0.01)
    assert always.settling_s == pytest.approx(12.3, abs=0.1), "no step has more than one"
    assert always.binding[0] == "what is settled at checkpoints"


def test_what_is_settled_is_as_much_as_is_kept() -> None:
    one, two = (settlement_s(Strategy(method), RESNET, 4, SLOW) for method in ("topk", "onebit"))
    assert two == pytest.approx(2 * one)
    assert settlement_s(Strategy("topk", momentum=True), RESNET, 4, SLOW) == pytest.approx(2 * one)
    assert settlement_s(Strategy("fp16"), RESNET, 4, SLOW) == settlement_s(Strategy(), RESNET, 4, SLOW) == 0
    assert settlement_s(Strategy("topk"), RESNET, 1, SLOW) == 0
    adam = replace(RESNET, state_bytes=3 * 4 * RESNET.parameters)
    streaming = Strategy(local="streaming_diloco", sync_every=8, fragments=4)
    assert settlement_s(streaming, adam, 4, SLOW) == pytest.approx(3 * one, rel=0.01), "the whole state"


def test_merging_lists_takes_longer_with_more_workers() -> None:
    model = replace(MODEL, merge_s={"topk": 1e-9, "gtopk": 1e-9})
    for method, of_three, of_nine in (("topk", 2, 8), ("gtopk", 2, 4)):
        three, nine = (predict(model, FAST, Strategy(method), workers, 64, 16) for workers in (3, 9))  # type: ignore[arg-type]
        assert nine.codec_s - three.codec_s == pytest.approx((of_nine - of_three) * 1e-9 * MODEL.compressed)
