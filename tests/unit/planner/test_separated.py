"""What is predicted where layers are separated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rubato.engine.separation import Separation
from rubato.planner.links import Link
from rubato.planner.methods import Strategy
from rubato.planner.predict import predict
from rubato.planner.profile import Layer, Profile
from rubato.planner.separated import cut_of
from rubato.wire.local_updates import CutFormat

FAST, SLOW = Link(0.0, 1e15), Link(1e-3, 1e6)
CONVOLUTIONAL = Profile(
    (
        Layer("features.0", ((64, 3, 5, 5), (64,)), 1e-3, 2e-3, 3 * 32 * 32, 64 * 16 * 16),
        Layer("classifier.0", ((2048, 256), (2048,)), 1e-5, 2e-5, 256, 2048),
        Layer("classifier.2", ((10, 2048), (10,)), 1e-6, 2e-6, 2048, 10),
    ),
    update_s=1e-9,
    modules={"features": (3 * 32 * 32, 256), "classifier": (256, 10)},
)
SEPARATED = Strategy(local="layer_separation", sync_every=100, cut=cut_of(CONVOLUTIONAL, "classifier"))


def test_separated_layers_send_samples_and_not_what_is_behind_the_cut() -> None:
    workers, samples = 5, 32
    told = predict(CONVOLUTIONAL, SLOW, SEPARATED, workers, samples * 100, 16)
    cut = cut_of(CONVOLUTIONAL, "classifier")
    assert cut is not None
    each = cut.update(CONVOLUTIONAL, SLOW, workers, samples)
    front = CONVOLUTIONAL.layers[0]
    assert each.compute_s == pytest.approx(samples / 4 * 3e-3 + samples * 3.3e-5)
    over_the_cut = 2 * 4 * samples * (256 + 10) / 1e6
    assert each.exchange_s == pytest.approx(over_the_cut + 2 * 4 * front.parameters * 3 / 4 / 1e6 + 16e-3, rel=0.01)
    kept, own = 4 * samples * (256 + 10), 2 * 4 * front.parameters * 3 / 4
    sent = cut.sent(CONVOLUTIONAL, workers, samples)
    assert sent == [kept, *[kept / 4 + own] * 4], "the keeper answers all that was asked"
    whole = predict(CONVOLUTIONAL, SLOW, Strategy(algorithm="ring"), workers, samples, 16, several=True)
    assert told.step_s / 100 < whole.step_s / 5


@pytest.mark.parametrize(
    ("packed", "to_keeper", "from_keeper"),
    [("none", 4 * (256 + 10), 4 * (256 + 10)), ("bf16", 2 * 266, 2 * 266), ("int8", 256 + 4 + 2 * 10, 2 * 266)],
)
def test_what_goes_over_a_cut_may_be_packed(packed: CutFormat, to_keeper: int, from_keeper: int) -> None:
    cut = cut_of(CONVOLUTIONAL, "classifier", packed)
    assert cut is not None
    each = cut.update(CONVOLUTIONAL, SLOW, 2, 32)
    assert each.exchange_s == pytest.approx(32 * (to_keeper + from_keeper) / 1e6 + 16e-3), "heads, tensors, and done"
    assert cut.sent(CONVOLUTIONAL, 2, 32) == [32 * from_keeper, 32 * to_keeper]


@pytest.mark.parametrize(
    ("workers", "keepers", "shares", "kept"),
    [
        (3, 1, [2, 2], [4]),
        (4, 1, [1, 1, 2], [4]),
        (6, 1, [0, 1, 1, 1, 1], [4]),
        (5, 2, [1, 1, 2], [3, 1]),
        (8, 3, [0, 1, 1, 1, 1], [1, 2, 1]),
    ],
)
def test_whole_microbatches_are_dealt_out(workers: int, keepers: int, shares: list[int], kept: list[int]) -> None:
    """The busiest on either side is waited for."""
    even, whole = (cut_of(CONVOLUTIONAL, "classifier", keepers=keepers, pieces=pieces) for pieces in (0, 4))
    assert even is not None
    assert whole is not None
    dealt = [len(Separation.share(range(4), index, len(shares))) for index in range(len(shares))]
    assert dealt == shares, "as the engine does"
    gained = [a - b for a, b in zip(*(one.sent(CONVOLUTIONAL, workers, 32) for one in (whole, even)), strict=True)]
    asked = [len(range(keeper, workers - keepers, keepers)) / (workers - keepers) for keeper in range(keepers)]
    expected = [32 * (part / 4 - share) * 4 * (256 + 10) for part, share in zip(kept, asked, strict=True)]
    expected += [32 * (part / 4 - 1 / len(shares)) * 4 * (256 + 10) for part in shares]
    assert gained == pytest.approx(expected, abs=1e-6)
    each = whole.update(CONVOLUTIONAL, SLOW, workers, 32)
    assert each.compute_s == pytest.approx(32 * (max(shares) / 4 * 3e-3 + max(kept) / 4 * 3.3e-5))


def test_of_the_front_half_the_bytes_travel_in_16_bits() -> None:
    """Of gradients and weights; what optimizers keep of it is handed over as it is."""
    profile = replace(CONVOLUTIONAL, state_bytes=3 * 4 * CONVOLUTIONAL.parameters, codec_s={"bf16": 1e-6})
    whole, half = (cut_of(profile, "classifier", front_format=one) for one in ("none", "bf16"))  # type: ignore[arg-type]
    assert whole is not None
    assert half is not None
    front = CONVOLUTIONAL.layers[0].parameters
    for workers in (2, 3, 5):
        others = workers - 1
        spared = 2 * 2 * front * (others - 1) / others
        sent = [one.sent(profile, workers, 32) for one in (whole, half)]
        assert [a - b for a, b in zip(*sent, strict=True)] == pytest.approx([0.0, *[spared] * others])
        seconds = [one.update(profile, SLOW, workers, 32).exchange_s for one in (whole, half)]
        cast_s = 1e-6 * front if others > 1 else 0.0
        assert seconds[0] - seconds[1] == pytest.approx(spared / SLOW.bytes_per_s - cast_s)
    assert [one.handed_bytes(profile) for one in (whole, half)] == [12 * front, 10 * front]
    of_bytes = replace(profile, element_bytes=2)
    assert half.sent(of_bytes, 5, 32) == whole.sent(of_bytes, 5, 32), "no less than bfloat16 has"


def test_over_a_cut_activations_have_a_type_of_their_own() -> None:
    """Gradients in 8 bytes, what goes in as bfloat16, what comes out as float32."""
    mixed = replace(CONVOLUTIONAL, element_bytes=8, module_bytes={"classifier": (2, 4)})
    kept = {"none": 2 * 256 + 4 * 10, "bf16": 2 * 256 + 2 * 10}
    for packed, size in kept.items():
        cut = cut_of(mixed, "classifier", packed)  # type: ignore[arg-type]
        assert cut is not None
        assert cut.sent(mixed, 2, 32) == [32 * size, 32 * size], "bfloat16 is no less in fewer bytes"
    layer = replace(CONVOLUTIONAL.layers[2], input_bytes=2, output_bytes=2)
    of_layer = cut_of(replace(CONVOLUTIONAL, layers=(*CONVOLUTIONAL.layers[:2], layer)), "classifier.2")
    assert of_layer is not None
    assert of_layer.sent(CONVOLUTIONAL, 2, 1) == [2 * (2048 + 10)] * 2


def test_one_worker_has_all_layers_and_two_have_a_part_each() -> None:
    one, two = (predict(CONVOLUTIONAL, FAST, SEPARATED, workers, 3200, 16, several=True) for workers in (1, 2))
    assert one.exposed_s == 0.0
    assert two.compute_s == pytest.approx(one.compute_s)
    assert two.update_s < one.update_s


@pytest.mark.parametrize(
    ("path", "back"),
    [("classifier", 2), ("classifier.2", 1), ("net.classifier", None), ("class", None), ("features.0", 1)],
)
def test_a_cut_is_found_by_the_name_of_the_module(path: str, back: int | None) -> None:
    found = cut_of(CONVOLUTIONAL, path)
    assert (found and len(found.back)) == back
    named = replace(CONVOLUTIONAL, layers=tuple(replace(one, name=f"net.{one.name}") for one in CONVOLUTIONAL.layers))
    assert (cut_of(named, path) is None) == (path == "class")


def test_a_cut_is_as_wide_as_its_module_and_not_as_the_first_layer_in_it() -> None:
    """A pool and a flattening in front of the linear layer: 64x16x16 elements travel, and 64 reach the layer."""
    layers = (
        Layer("features.0", ((64, 3, 5, 5), (64,)), 1e-3, 2e-3, 3 * 32 * 32, 64 * 16 * 16),
        Layer("classifier.2", ((10, 64), (10,)), 1e-6, 2e-6, 64, 10),
    )
    pooled = Profile(layers, modules={"classifier": (64 * 16 * 16, 10)})
    for path in ("classifier", "net.classifier"):
        named = replace(
            pooled, modules={path: (64 * 16 * 16, 10)}, layers=(layers[0], replace(layers[1], name=f"{path}.2"))
        )
        cut = cut_of(named, "classifier")
        assert cut is not None
        assert (cut.inputs, cut.outputs) == (64 * 16 * 16, 10)
    unknown = cut_of(replace(pooled, modules={}), "classifier")
    assert unknown is not None
    assert (unknown.inputs, unknown.outputs) == (0, 0), "not those of the layer"
