from __future__ import annotations

from typing import Any

import pytest

from rubato.errors import SpecError
from rubato.wire.spec import JobSpec, parse_spec

SPEC = {"name": "a", "entrypoint": "train.py:train", "batch": {"global_size": 128, "num_microbatches": 8}}
ON = {"method": "diloco", "sync_every": 8}
APART = {"method": "layer_separation", "sync_every": 8, "cut": "head"}
APART_TOO = {"reproducible": False, "workers": {"max": 3}}


def spec_of(local: dict[str, Any], **fields: Any) -> JobSpec:
    return parse_spec({**SPEC, "local_updates": local, **fields})


def test_what_holds() -> None:
    assert not parse_spec(SPEC).local_updates.is_on
    spec = spec_of({**ON, "outer": {"lr": 0.5, "momentum": 0.0}})
    assert spec.local_updates.is_on
    assert spec.reproducible
    auto = spec_of(ON, batch={"global_size": 96}, workers={"max": 6})
    assert auto.num_microbatches == 6, "one for each worker that there may be"


def test_both_ways_to_wait_for_all_that_a_staleness_of_0_is_sent_to_are_allowed() -> None:
    assert spec_of({"method": "synchronous", "sync_every": 8}, reproducible=False).local_updates.is_served
    alone = parse_spec({**SPEC, "aggregation": {"algorithm": "server"}, "reproducible": False})
    assert not alone.local_updates.is_on


@pytest.mark.parametrize(
    ("local", "fields", "message"),
    [
        ({"sync_every": 8}, {}, "local_updates.sync_every: needs a method: local_sgd, diloco, asynchronous"),
        ({**ON, "sync_every": 0}, {}, "local_updates.sync_every: must lie in 1..100000, got 0"),
        ({"method": "local_sgd", "outer": {"lr": 0.5}}, {}, "local_updates.outer: local_sgd has no outer optimizer"),
        (
            {"staleness": 1},
            {},
            "local_updates.staleness: none has no bound on staleness; say method: asynchronous",
        ),
        (
            {"method": "asynchronous", "staleness": 0},
            {"reproducible": False},
            "local_updates.staleness: must lie in 1..100000, got 0 (0 is to wait for all at each update: say "
            "method: synchronous, or, for one update in a step, aggregation.algorithm: server",
        ),
        (
            {**ON, "fragments": 2},
            {},
            "local_updates.fragments: diloco exchanges no fragments; say method: streaming_diloco",
        ),
        (
            {"method": "streaming_diloco", "fragments": 0},
            {"reproducible": False},
            "local_updates.fragments: must lie in 1..1000, got 0",
        ),
        ({**ON, "mix": 0.5}, {}, "local_updates.mix: diloco mixes no fragments; say method: streaming_diloco"),
        ({**ON, "delay": 1}, {}, "local_updates.delay: diloco exchanges no fragments; say method: streaming_diloco"),
        (
            {"method": "streaming_diloco", "sync_every": 4, "delay": 4},
            {"reproducible": False},
            "must be at least 0 and below sync_every (4), the updates of a step; got 4",
        ),
        (
            {"method": "streaming_diloco", "mix": 1.0},
            {"reproducible": False},
            "local_updates.mix: must be at least 0 and below 1, got 1.0",
        ),
        ({"method": "streaming_diloco"}, {}, "with streaming_diloco each worker trains weights of its own"),
        ({"backups": 1}, {}, "local_updates.backups: none has no backup workers; say method: synchronous"),
        (
            {"method": "synchronous", "backups": -1},
            {"reproducible": False},
            "local_updates.backups: must be at least 0, got -1",
        ),
        (
            {"method": "synchronous", "backups": 2},
            {"reproducible": False, "workers": {"max": 3}},
            "local_updates.backups: 2 leave nobody to compute beside the one that makes the updates: workers.max is 3",
        ),
        ({"method": "synchronous"}, {}, "local_updates.method: synchronous gives other bits with another number"),
        ({**ON, "damping": True}, {}, "local_updates.damping: diloco knows no gradients of older weights"),
        ({**ON, "replay": "/kept/1-9"}, {}, "local_updates.replay: diloco has no order of its own"),
        ({"method": "asynchronous"}, {}, "local_updates.method: asynchronous gives other bits with another number"),
        (
            {"method": "layer_separation"},
            {"reproducible": False},
            "local_updates.cut: is missing: layer_separation gives",
        ),
        ({**ON, "cut": "head"}, {}, "local_updates.cut: diloco separates no layers; say method: layer_separation"),
        ({**ON, "keepers": 2}, {}, "local_updates.keepers: diloco separates no layers; say method: layer_separation"),
        ({**APART, "keepers": 0}, APART_TOO, "local_updates.keepers: must be at least 1, got 0"),
        ({**APART, "keepers": 2}, APART_TOO, "local_updates.keepers: 2 leave too few to compute the layers before"),
        ({**ON, "cut_format": "int8"}, {}, "local_updates.cut_format: diloco sends nothing between layers"),
        ({**ON, "front_format": "bf16"}, {}, "local_updates.front_format: with diloco all have all layers; say method"),
        ({**ON, "outer": {"lr": 0}}, {}, "local_updates.outer.lr: must be more than 0"),
        ({**ON, "outer": {"momentum": 1}}, {}, "local_updates.outer.momentum: must be at least 0 and below 1"),
        ({**ON, "sync_every": 7}, {}, "batch.global_size: must be a multiple of 56: 8 microbatches, 7 updates"),
        (ON, {"backend": "ray_train"}, "Ray Train exchanges the gradients itself"),
        (
            ON,
            {"reproducible": False, "aggregation": {"algorithm": "ring"}},
            "aggregation: local_updates exchange weights, once in 8 updates; leave ring out",
        ),
        (
            ON,
            {"batch": {"global_size": 128, "num_microbatches": 8, "noise_every": 5}},
            "batch.noise_every: with local_updates no gradients are exchanged",
        ),
        (ON, {"lr_scaling": {"rule": "linear", "base_size": 8}}, "lr_scaling: with local_updates learning rates"),
    ],
)
def test_what_is_refused(local: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_of(local, **fields)
    assert message in str(refused.value)
