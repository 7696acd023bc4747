"""A profile from what was seen of passes of several sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import UserError
from rubato.planner.links import Moved, time_of
from rubato.planner.measured import Passes, Seen, link_of, profile_of, sizes_of
from rubato.planner.profile import MAX_LAYERS, Profile
from rubato.planner.separated import cut_of
from rubato.wire.codec import from_json
from rubato.wire.spec import parse_spec

SECONDS = st.floats(1e-7, 1e-2)


def passes(samples: int, first: tuple[float, float], last: tuple[float, float], start_s: float) -> Passes:
    """What layers with these seconds a sample, forward and backward, would take; the start counts for the first."""
    layers = [
        Seen(name, ((4, 3), (4,)), ways[0] * samples + start, ways[1] * samples + start, 3, 4, 2, 8)
        for name, ways, start in (("first", first, start_s), ("last", last, 0.0))
    ]
    codecs = ({"topk": 1e-9}, {"topk": 1e-11}, {"density": 0.25}) if samples == 8 else ({}, {}, {})
    sizes: dict[str, tuple[int, ...]] = {"model": (2, 8)}
    return Passes(samples, tuple(layers), 3e-4, 32, 1000, "cpu", *codecs, {"model": (3, 4)}, 0.1, 8, sizes, 2000)


@given(first=st.tuples(SECONDS, SECONDS), last=st.tuples(SECONDS, SECONDS), start_s=st.floats(0, 0.1))
def test_a_line_through_the_sizes(first: tuple[float, float], last: tuple[float, float], start_s: float) -> None:
    found = profile_of([passes(samples, first, last, start_s) for samples in (8, 16, 32)])
    for samples in (8, 64):
        assert found.forward_s(samples) == pytest.approx(start_s + samples * (first[0] + last[0]), rel=1e-6)
        assert found.backward_s(samples) == pytest.approx(start_s + samples * (first[1] + last[1]), rel=1e-6)
    assert (found.parameters, found.matrices, found.codec_s) == (32, [(4, 3), (4, 3)], {"topk": 1e-9})
    assert found.update_s * 32 == pytest.approx(3e-4)
    assert (found.state_bytes, found.averaged_bytes, found.device) == (1000, 2000, "cpu")
    assert (found.merge_s, found.codec_settings) == ({"topk": 1e-11}, {"density": 0.25}), "of the passes with codecs"
    assert (found.modules, found.spread) == ({"model": (3, 4)}, 0.1)
    assert (found.element_bytes, found.module_bytes) == (8, {"model": (2, 8)})
    assert {(one.inputs, one.outputs, one.input_bytes, one.output_bytes) for one in found.layers} == {(3, 4, 2, 8)}


def test_an_older_profile_is_of_elements_of_4_bytes() -> None:
    layer = {"name": "head", "shapes": [[4, 3]], "forward_s": 1e-3, "backward_s": 1e-3, "inputs": 3, "outputs": 4}
    front = {**layer, "name": "front"}
    found = from_json(Profile, {"layers": [front, layer], "modules": {"head": [3, 4]}}, strict=True)
    cut = cut_of(found, "head")
    assert cut is not None
    assert (found.element_bytes, cut.input_bytes, cut.output_bytes) == (4, 4, 4)


def test_noise_gives_no_negative_times() -> None:
    seen = [passes(samples, (1e-3, 1e-3), (1e-3, 1e-3), 0.0) for samples in (8, 16, 32)]
    faster = [replace(layer, forward_s=1e-3 / one.samples) for one in seen for layer in one.layers]
    seen = [replace(one, layers=tuple(faster[2 * at : 2 * at + 2])) for at, one in enumerate(seen)]
    found = profile_of(seen)
    assert all(layer.forward_s >= 0 for layer in found.layers)
    assert found.start_s >= 0


def test_of_very_many_layers_neighbours_are_one() -> None:
    names = [f"blocks.{block}.{part}" for block in range(MAX_LAYERS // 2) for part in ("q", "k", "v", "out")]
    seen = [
        Passes(samples, tuple(Seen(name, ((4, 3), (4,)), 1e-6, 2e-6) for name in names), 3e-4, 64_000, 1000, "cpu")
        for samples in (8, 16)
    ]
    found = profile_of(seen)
    assert len(found.layers) <= MAX_LAYERS
    assert found.parameters == 16 * len(names)
    assert len(found.matrices) == len(names)


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        ([100 + 40 * samples for samples in (8, 16, 32)], (100, 40)),
        ([40 * samples for samples in (8, 16, 32)], (0, 40)),
        ([30 * samples - 200 for samples in (8, 16, 32)], (0, 22)),
        ([900, 700, 500], (700, 0)),
        ([900, None, 500], ()),
    ],
)
def test_what_passes_keep_lies_on_a_line(kept: list[int | None], line: tuple[int, ...]) -> None:
    """Neither end is below 0; where one size did not tell there is none."""
    plain = [passes(samples, (1e-3, 1e-3), (1e-3, 1e-3), 0.0) for samples in (8, 16, 32)]
    assert profile_of(plain).activation_bytes == ()
    seen = [replace(one, kept_bytes=size) for one, size in zip(plain, kept, strict=True)]
    assert (found := profile_of(seen)).activation_bytes == line
    if line:
        assert found.kept_bytes(64) == line[0] + 64 * line[1]


def test_what_makes_no_profile_is_refused() -> None:
    one = passes(8, (1e-3, 1e-3), (1e-3, 1e-3), 0.0)
    with pytest.raises(UserError, match="two sizes"):
        profile_of([one, one])
    with pytest.raises(UserError, match="other layers with another size"):
        profile_of([one, replace(one, samples=16, layers=one.layers[:1])])


def test_sizes_are_about_those_of_the_job() -> None:
    def sizes(**fields: object) -> list[int]:
        batch = {"global_size": 256, "num_microbatches": 16}
        return sizes_of(parse_spec({"name": "a", "recipe": "char-lm", "batch": batch, **fields}))

    assert sizes() == [8, 16, 32]
    assert sizes(reproducible=False, workers={"max": 4}) == [32, 64, 128]
    assert sizes(batch={"global_size": 16, "num_microbatches": 16}) == [1, 2, 3]


@pytest.mark.parametrize(
    ("local", "usual"),
    [
        ({"method": "asynchronous", "sync_every": 8}, 512 // 8),
        ({"method": "synchronous", "sync_every": 8, "backups": 1}, 512 // 8 // 6),
        ({"method": "layer_separation", "sync_every": 8, "cut": "head", "keepers": 2}, 512 // 8 // 6),
        ({"method": "streaming_diloco", "sync_every": 8}, 512 // 8 // 8),
    ],
)
def test_where_a_worker_leads_sizes_are_those_of_what_it_deals_out(local: dict[str, object], usual: int) -> None:
    batch = {"global_size": 512, "num_microbatches": 8}
    spec = {"name": "a", "recipe": "char-lm", "batch": batch, "workers": {"max": 8}, "reproducible": False}
    assert sizes_of(parse_spec({**spec, "local_updates": local})) == [usual // 2, usual, 2 * usual]


ROW = {
    "loss": 0.0,
    "link_latency_s": 0.002,
    "link_bytes_per_s": 1e6,
    "link_workers": 4.0,
    "link_large_bytes": 1e6,
    "link_ring_small_s": 0.03,
    "link_ring_large_s": 0.03 + 1.5 / 0.75,
    "link_tree_small_s": 0.05,
    "link_tree_large_s": 0.05,
}


def test_a_link_is_what_a_job_has_measured() -> None:
    """A ring of four moves 1.5 MB through a port of 1 MB/s in 2 s: three quarters of what the port carries."""
    link = link_of([{"loss": 1.0}, ROW, {**ROW, "link_latency_s": 9.0}, {**ROW, "link_latency_s": 0.001}])
    assert (link.latency_s, link.bytes_per_s, link.measured_workers) == (0.002, 1e6, 4)
    assert link.start_s == {"ring": 0.03, "tree": 0.05}
    assert link.moved == {"ring": (Moved(1.5e6, pytest.approx(2.0)),)}
    assert time_of("ring", 4, 1e6, link) == pytest.approx(ROW["link_ring_large_s"])
    assert time_of("tree", 4, 1e6, link) == pytest.approx(0.05 + 4 / 0.75), "one that took no time has the usual share"


def test_a_smaller_vector_that_was_measured_too_takes_what_it_took() -> None:
    """What one has more than the larger is told by both; one that took no less than a larger one tells nothing."""
    quarter = {"link_quarter_bytes": 2.5e5, "link_ring_quarter_s": 0.03 + 0.8, "link_tree_quarter_s": 0.9}
    sixteenth = {"link_sixteenth_bytes": 6.25e4, "link_ring_sixteenth_s": 0.03 + 0.2, "link_tree_sixteenth_s": 1.0}
    link = link_of([{**ROW, **quarter, **sixteenth, "link_tree_large_s": 4.05}])
    assert time_of("ring", 4, 6.25e4, link) == pytest.approx(0.23)
    assert time_of("ring", 4, 2.5e5, link) == pytest.approx(0.83)
    assert time_of("ring", 4, 1e6, link) == pytest.approx(ROW["link_ring_large_s"])
    assert time_of("ring", 4, 2e6, link) == pytest.approx(0.03 + 2.0 + 1.2 * 4 / 3)
    assert link.moved["tree"] == (Moved(1e6, pytest.approx(0.85)), Moved(4e6, pytest.approx(4.0)))
    late = link_of([{**ROW, **quarter, **sixteenth, "link_ring_sixteenth_s": 9.0}])
    assert time_of("ring", 4, 1e6, late) == pytest.approx(ROW["link_ring_large_s"]), "whatever delayed a smaller one"
    assert time_of("ring", 4, 6.25e4, late) == pytest.approx(0.03 + 0.8 / 4)


def test_a_start_that_large_vectors_do_not_wait_for_is_not_added_to_what_they_take() -> None:
    """Ten in a row start while others are on their way; no vector is faster than its port."""
    pipelined = {**ROW, "link_ring_small_s": 1.0, "link_ring_large_s": 1.7}
    link = link_of([pipelined])
    assert time_of("ring", 4, 1e6, link) == pytest.approx(1.7)
    assert time_of("ring", 4, 8e5, link) == pytest.approx(1.0 + 0.7 * 0.8)
    assert time_of("ring", 4, 2e6, link) == pytest.approx(1.7 + 1.5)
    assert link.usual_share == 1.0
    assert time_of("ring", 4, 1e6, link_of([{**pipelined, "link_ring_large_s": 1.2}])) == pytest.approx(1.5)


@pytest.mark.parametrize("rows", [[], [{"loss": 1.0}], [{"link_latency_s": 1.0}]])
def test_a_job_that_has_measured_no_links(rows: list[dict[str, float | None]]) -> None:
    with pytest.raises(UserError, match="has measured no links: `rubato submit --recipe measure-links --workers 4`"):
        link_of(rows)
