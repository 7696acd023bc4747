"""What a spec with `backend: ray_train` may hold: what would silently do nothing is refused, each with its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json

PLAIN: dict[str, Any] = {"name": "a", "backend": "ray_train", "entrypoint": "train.py:train_func"}

REFUSED: dict[str, dict[str, Any]] = {
    "secrets": {"secrets": ["TOKEN"]},
    "device": {"device": "cpu"},
    "seed": {"seed": 1},
    "on_non_finite": {"on_non_finite": "skip"},
    "batch.global_size": {"batch": {"global_size": 512}},
    "batch.num_microbatches": {"batch": {"num_microbatches": 16}},
    "workers.standby": {"workers": {"standby": 1}},
    "workers.autoscale": {"workers": {"autoscale": "goodput"}},
    "checkpoint.every": {"checkpoint": {"every": 60}},
    "checkpoint.every_steps": {"checkpoint": {"every_steps": 10}},
    "checkpoint.max_interval": {"checkpoint": {"max_interval": 60}},
    "checkpoint.resume_from": {"checkpoint": {"resume_from": "ckpt_1"}},
    "checkpoint.keep_last": {"checkpoint": {"keep_last": 2, "keep_best": {}}},
    "restart.no_retry_on_exit_codes": {"restart": {"no_retry_on_exit_codes": [3]}},
    "limits.hang_timeout": {"limits": {"hang_timeout": 60}},
}
TAKEN: list[dict[str, Any]] = [
    {"config": {"epochs": 3}},
    {"workers": {"initial": 2, "max": 1000, "autoscale": "capacity"}},
    {"resources_per_worker": {"gpu": 1, "memory": "2GiB", "accelerator_type": "H100"}},
    {"checkpoint": {"keep_last": 9}},
    {"checkpoint": {"keep_best": {"metric": "accuracy", "mode": "max", "keep": 2}}},
    {"restart": {"max_restarts": 0, "backoff": {"initial": 1}}},
    {"limits": {"stop_grace": 5, "max_duration": "1h", "queue_timeout": 60}},
    {"scheduling": {"priority": 9}},
    {"env": {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}},
    {"reproducible": False},
]


def findings(data: dict[str, Any]) -> dict[str, str]:
    try:
        parse_spec(data)
    except SpecError as error:
        return {finding.path: finding.message for finding in error.findings}
    return {}


@pytest.mark.parametrize("path", REFUSED)
def test_what_would_do_nothing_is_refused(path: str) -> None:
    assert list(findings({**PLAIN, **REFUSED[path]})) == [path]
    assert findings({**PLAIN, **REFUSED[path], "backend": "rubato"}) == {}


def test_a_recipe_is_refused() -> None:
    given_recipe = {"name": "a", "backend": "ray_train", "recipe": "image-classifier"}
    assert "recipes are programs for Rubato" in findings(given_recipe)["recipe"]


@pytest.mark.parametrize("given", TAKEN, ids=str)
def test_the_rest_is_taken_and_the_same_when_it_was_stored(given: dict[str, Any]) -> None:
    spec = parse_spec({**PLAIN, **given})
    assert parse_spec(spec_to_json(spec)) == spec
    assert spec_to_json(spec)["batch"]["num_microbatches"] == "auto"


@given(st.sets(st.sampled_from(sorted(set(REFUSED) - {"checkpoint.keep_last"})), min_size=1))
def test_all_that_is_refused_is_found_at_once(paths: set[str]) -> None:
    data: dict[str, Any] = dict(PLAIN)
    for path in paths:
        for section, values in REFUSED[path].items():
            old = data.get(section)
            data[section] = {**old, **values} if isinstance(old, dict) else values
    assert set(findings(data)) == paths


def test_the_default_is_rubato() -> None:
    assert JobSpec(name="a", entrypoint="train.py").backend == "rubato"
