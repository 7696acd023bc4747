from __future__ import annotations

from typing import Any

import pytest

from rubato.wire.spec import parse_spec, spec_to_json
from service.spec_origin import given_fields


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"seed": 0, "workers": {"initial": 1, "max": 8}, "limits": {"stop_grace": "30s"}}, []),
        ({"config": {"lr": 0.1}, "env": {"A": "1"}, "labels": {"team": "x"}}, ["labels.team", "config.lr", "env.A"]),
        ({"workers": {"initial": 12}, "batch": {"global_size": 512}}, ["workers.initial", "batch.global_size"]),
        ({"workers": {"max": 9}, "seed": 3}, ["workers.max", "seed"]),
        ({"batch": {"num_microbatches": 40}}, ["batch.num_microbatches"]),
        ({"checkpoint": {"keep_best": {"metric": "loss"}}}, ["checkpoint.keep_best"]),
    ],
)
def test_what_was_given_is_told_from_the_defaults(given: dict[str, Any], expected: list[str]) -> None:
    spec = spec_to_json(parse_spec({"name": "digits", "recipe": "char-lm", **given}))
    assert sorted(given_fields(spec)) == sorted(["name", "recipe", *expected])


def test_a_spec_of_another_release_is_borne() -> None:
    assert given_fields({"name": "a", "recipe": None, "gone": 1, "workers": None}) == ["name", "gone", "workers"]
