"""The `aggregation` of a job spec: what is taken, and what is refused with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from rubato.errors import SpecError
from rubato.wire.aggregation import AggregationSpec
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json


def parse(aggregation: dict[str, Any], **spec: Any) -> JobSpec:
    return parse_spec(
        {"name": "a", "entrypoint": "train.py:train", "reproducible": False, "aggregation": aggregation, **spec}
    )


def refusal(aggregation: dict[str, Any], **spec: Any) -> str:
    with pytest.raises(SpecError) as caught:
        parse(aggregation, **spec)
    return str(caught.value)


def test_what_is_left_out_is_the_engines_own_reduction() -> None:
    assert parse({}).aggregation == AggregationSpec()
    assert parse({}, reproducible=True).aggregation.is_default
    assert parse({"compression": {"method": "none"}}, reproducible=True).aggregation.is_default
    assert not parse({"algorithm": "tree"}).aggregation.is_default


def test_servers_go_with_their_algorithm() -> None:
    assert parse({"algorithm": "server", "servers": 3}).aggregation.servers == 3
    assert "servers: auto has none; say algorithm: server" in refusal({"servers": 2})
    assert "servers: must lie in 1..4096" in refusal({"algorithm": "server", "servers": 0})
    sketch = {"algorithm": "server", "compression": {"method": "sketch"}}
    assert "a sketch that one worker adds up is compression.method: sketched_sgd" in refusal(sketch)


def test_a_spec_is_the_same_after_a_journey() -> None:
    spec = parse({"compression": {"method": "topk", "density": 0.01, "warmup_densities": [0.25, 0.1], "momentum": 0.9}})
    assert spec.aggregation.compression.warmup_densities == (0.25, 0.1)
    assert parse_spec(spec_to_json(spec)).aggregation == spec.aggregation


@pytest.mark.parametrize(
    ("compression", "sentence"),
    [
        ({"method": "topk", "density": 0}, "aggregation.compression.density: must lie above 0 and be at most 1"),
        (
            {"method": "topk", "warmup_densities": [0.5, 2]},
            "warmup_densities[1]: must lie above 0 and be at most 1, got 2",
        ),
        ({"method": "onebit", "warmup_densities": [0.1]}, "warmup_densities: onebit has no density; leave it out"),
        ({"method": "powersgd", "rank": 0}, "rank: must lie in 1..1024, got 0"),
        ({"method": "threshold", "threshold": 0}, "threshold: must be more than 0"),
        ({"method": "sketch", "rows": 0}, "rows: must lie in 1..25"),
        ({"method": "sketch", "columns": 0}, "columns: must lie in 1.."),
        ({"method": "sketch", "momentum": 1.0}, "momentum: must be at least 0 and below 1"),
        (
            {"method": "gtopk", "momentum": 0.9},
            "momentum: gtopk cannot carry momentum; give it to the optimizer, or use",
        ),
        ({"method": "topk", "start_step": -1}, "start_step: must lie in 0.."),
        ({"method": "fp16", "on_loss": "rollback"}, "on_loss: fp16 keeps nothing that could be lost; leave it out"),
        ({"on_loss": "rollback"}, "on_loss: none keeps nothing that could be lost; leave it out"),
        ({"method": "top-k"}, "topk"),
    ],
)
def test_what_cannot_be_is_refused(compression: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal({"compression": compression})


def test_equal_bits_and_compression_exclude_each_other() -> None:
    for aggregation, name in (({"compression": {"method": "fp16"}}, "fp16"), ({"algorithm": "ring"}, "ring")):
        told = refusal(aggregation, reproducible=True)
        assert f"aggregation: {name} gives other bits with another number of workers: say reproducible: false" in told


def test_a_method_with_an_exchange_of_its_own_takes_no_algorithm() -> None:
    told = refusal({"algorithm": "ring", "compression": {"method": "topk"}})
    assert "aggregation.algorithm: topk says itself how it is exchanged; leave it out" in told
    assert parse({"algorithm": "ring", "compression": {"method": "sketch"}}).aggregation.algorithm == "ring"


def test_ray_train_exchanges_the_gradients_itself() -> None:
    told = refusal({"compression": {"method": "fp16"}}, backend="ray_train")
    assert "aggregation: Ray Train exchanges the gradients itself; leave it out" in told
