"""What is said of a spec that holds."""

from __future__ import annotations

from typing import Any

import pytest

from rubato.wire.remarks import remarks_of
from rubato.wire.spec import parse_spec


def said(**fields: Any) -> str:
    return " ".join(remarks_of(parse_spec({"name": "a", "entrypoint": "train.py:train", **fields})))


def compressed(**compression: Any) -> str:
    return said(reproducible=False, aggregation={"compression": compression})


def separated(**packed: Any) -> str:
    return said(
        reproducible=False,
        batch={"global_size": 128},
        workers={"max": 4},
        local_updates={"method": "layer_separation", "sync_every": 8, "cut": "classifier", **packed},
    )


def shared(initial: int, count: int, **workers: int) -> str:
    """With so many microbatches."""
    return said(workers={"initial": initial, **workers}, batch={"global_size": 256, "num_microbatches": count})


def test_nothing_is_said_of_what_is_usual() -> None:
    assert said() == said(backend="ray_train", reproducible=False) == ""


@pytest.mark.parametrize(
    ("told", "shares"),
    [
        (shared(3, 8), "8 microbatches (batch.num_microbatches) 3 workers (workers.initial) have 2 or 3 each"),
        (shared(3, 8), "some wait for others in each step: 2 or 4 workers have equally many."),
        (shared(5, 8), "in each step: 4 or 8 workers have equally many."),
        (shared(7, 16, min=5, max=9), "in each step: 8 workers have equally many."),
        (shared(6, 16, min=5, max=7), "in each step: give a multiple of 6."),
        (shared(2, 9, max=2), "have 4 or 5 each, so that some wait for others in each step: give a multiple of 2."),
    ],
)
def test_shares_that_are_not_equal_are_told_with_the_counts_nearby(told: str, shares: str) -> None:
    assert shares in told
    assert told.count(".") == 3, "one sentence, and two fields of the spec"


def test_equal_shares_are_not_told() -> None:
    assert "".join(shared(count, 8) for count in (1, 2, 4, 8)) == ""
    assert "microbatches" not in said(reproducible=False, workers={"initial": 3})
    local = {"method": "local_sgd", "sync_every": 4}
    batch = {"global_size": 256, "num_microbatches": 8}
    assert "wait for others" not in said(workers={"initial": 3}, batch=batch, local_updates=local)


@pytest.mark.parametrize(
    ("told", "sentences"),
    [
        (said(reproducible=False), ["The bits of the weights follow the number of workers"]),
        (said(reproducible=False, aggregation={"algorithm": "tree"}), ["exchanged whole by tree, when the backward"]),
        (compressed(method="bf16"), ["rounded to bf16 before they are added up"]),
        (compressed(method="topk"), ["With topk a part of each gradient travels later", "on_loss: rollback goes back"]),
        (
            compressed(method="topk"),
            ["Before each checkpoint, every 30 s, all tell each other what they keep: as much as a whole gradient."],
        ),
        (compressed(method="onebit"), ["as much as a whole gradient, twice."]),
        (compressed(method="topk", momentum=0.9), ["as much as a whole gradient, twice."]),
        (
            said(
                reproducible=False,
                aggregation={"compression": {"method": "topk"}},
                checkpoint={"every_steps": 500},
            ),
            ["Before each checkpoint, every 500 steps, all"],
        ),
        (
            said(
                reproducible=False,
                batch={"global_size": 128},
                workers={"max": 4},
                checkpoint={"every": "auto"},
                local_updates={"method": "streaming_diloco", "sync_every": 8, "fragments": 4},
            ),
            ["Before each checkpoint, at intervals that the job chooses, that is an exchange of all weights"],
        ),
        (compressed(method="topk", on_loss="rollback"), ["sends all back to the newest checkpoint, as"]),
        (compressed(method="powersgd"), ["With powersgd all workers must run on nodes of one kind"]),
        (compressed(method="topk", momentum=0.9), ["The optimizer must have no momentum of its own"]),
        (
            said(
                batch={"global_size": 128, "num_microbatches": 8}, local_updates={"method": "diloco", "sync_every": 8}
            ),
            [
                "Each of the 8 microbatches makes 8 updates by itself in a step",
                "a step is so many updates, for schedules",
            ],
        ),
        (
            said(
                reproducible=False,
                batch={"global_size": 128},
                workers={"max": 2},
                local_updates={"method": "asynchronous", "sync_every": 8, "staleness": 3},
            ),
            [
                "One worker makes the 8 updates of a step, as gradients come from the others, at most 3 steps ahead",
                "With two workers one computes and one makes updates",
            ],
        ),
        (
            said(
                reproducible=False,
                batch={"global_size": 128},
                workers={"max": 4},
                local_updates={"method": "streaming_diloco", "sync_every": 8, "fragments": 4},
            ),
            ["Each worker makes 8 updates of its own in a step, then all exchange one of 4 fragments"],
        ),
        (
            said(
                reproducible=False,
                batch={"global_size": 256},
                local_updates={"method": "streaming_diloco", "sync_every": 8, "delay": 2},
            ),
            ["A fragment is told as it is 2 updates before the end of a step, and travels while these are made"],
        ),
        (
            said(
                reproducible=False,
                batch={"global_size": 128},
                workers={"max": 4},
                local_updates={"method": "synchronous", "sync_every": 8, "backups": 1},
            ),
            ["One worker makes the 8 updates of a step, each of the gradients of all the others, and waits for none"],
        ),
        (
            separated(),
            ["One worker computes classifier for all, the others all layers before it: in a step they make 8 updates"],
        ),
        (
            separated(keepers=2),
            ["2 workers compute classifier for all, the others all layers before it: in a step they make 8 updates"],
        ),
        (
            separated(cut_format="int8"),
            ["With cut_format: int8 numbers are rounded where they travel, and one worker alone rounds none"],
        ),
        (
            separated(cut_format="bf16", front_format="bf16"),
            ["With cut_format: bf16 and front_format: bf16 numbers are rounded where they travel, and one worker"],
        ),
        (
            said(lr_scaling={"rule": "sqrt", "base_size": 64}),
            ["Learning rates are multiplied as sqrt says, from a batch of 64 to one of 256."],
        ),
    ],
)
def test_what_is_worth_knowing_is_said(told: str, sentences: list[str]) -> None:
    assert all(sentence in told for sentence in sentences), told


def test_each_is_said_once() -> None:
    told = compressed(method="topk", on_loss="rollback")
    assert "takes along what it had kept" not in told
    assert "rounded" not in told
    assert "exchanged whole" not in told
    assert "Before each checkpoint" not in compressed(method="fp16") + said(reproducible=False)


@pytest.mark.parametrize("method", ["sketch", "sketched_sgd"])
def test_a_density_that_is_too_large_for_a_sketch_is_told(method: str) -> None:
    assert "too large" not in compressed(method=method, density=0.05)
    assert "A density of 0.1 is too large for a sketch" in compressed(method=method, density=0.1)
    assert "too large" not in compressed(method=method, density=0.1, columns=5000)
    assert "too large" not in compressed(method="topk", density=0.1)


def test_that_one_microbatch_has_no_noise_is_told() -> None:
    one, two = (
        said(workers={"max": 1}, batch={"global_size": 8, "num_microbatches": count, "noise_every": 1})
        for count in (1, 2)
    )
    assert two == ""
    assert one.startswith("The noise is what gradients of microbatches differ by, and there is one")


@pytest.mark.parametrize(
    ("compression", "told"),
    [
        ({"density": 0.1}, "aggregation.compression.density does nothing in training with method: none; it is for"),
        (
            {"density": 0.1},
            "gtopk, hierarchical_topk, sketch, sketched_sgd, topk: say one of them, or leave it out.",
        ),
        (
            {"method": "topk", "rank": 8},
            "compression.rank does nothing in training with method: topk; it is for powersgd: say",
        ),
        (
            {"method": "powersgd", "threshold": 0.1},
            "compression.threshold does nothing in training with method: powersgd; it is for threshold",
        ),
        (
            {"method": "gtopk", "rows": 3, "columns": 9},
            "compression.rows does nothing in training with method: gtopk; it is for sketch, sketched_sgd",
        ),
    ],
)
def test_settings_of_other_methods_are_told(compression: dict[str, Any], told: str) -> None:
    assert told in compressed(**compression)


def test_settings_of_the_method_are_not_told() -> None:
    each = [
        {"method": "topk", "density": 0.1},
        {"method": "powersgd", "rank": 8},
        {"method": "threshold", "threshold": 0.1},
        {"method": "sketch", "density": 0.01, "rows": 3, "columns": 99},
        {"method": "powersgd", "rank": 4, "density": 0.001},
    ]
    assert [one for one in each if "does nothing" in compressed(**one)] == [], "a usual value is as one not given"


def test_what_can_do_nothing_is_told() -> None:
    several = {"algorithm": "server", "servers": 9}
    assert "servers: 9 is more than there may be workers (workers.max): at most 4 add up for all" in said(
        reproducible=False, workers={"max": 4}, aggregation=several
    )
    assert "add up for all" not in said(reproducible=False, workers={"max": 9}, aggregation=several)
    alone = {"method": "layer_separation", "sync_every": 8, "cut": "classifier"}
    fields = {"reproducible": False, "batch": {"global_size": 128}, "local_updates": alone}
    assert "nothing is separated" in said(workers={"max": 1}, **fields)
    assert "nothing is separated" not in separated()
    once = said(batch={"global_size": 128}, local_updates={"method": "diloco"})
    assert "makes 1 update by itself" in once
    assert "which saves nothing: say 8" in once
    assert "saves nothing" not in said(batch={"global_size": 128}, local_updates={"method": "diloco", "sync_every": 4})


def test_how_far_an_outer_optimizer_goes_is_told() -> None:
    batch = {"global_size": 128}
    usual = said(batch=batch, local_updates={"method": "diloco", "sync_every": 4})
    assert "goes up to 7 times as far as these updates came" in usual
    for outer in ({"lr": 0.7, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.9}):
        no_farther = {"method": "diloco", "sync_every": 4, "outer": outer}
        assert "times as far" not in said(batch=batch, local_updates=no_farther)
    assert "times as far" not in said(batch=batch, local_updates={"method": "local_sgd", "sync_every": 4})
