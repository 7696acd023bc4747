from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from rubato.cli.starter import BATCH, CONFIG, DEFAULT_BATCH, JOB, Template
from rubato.wire.schema import job_spec_schema
from rubato.wire.spec import JobSpec, KeepBestSpec, parse_spec, spec_to_json

SCHEMA = Draft7Validator(job_spec_schema())
SMALLEST = {"name": "a", "recipe": "image-classifier"}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "job-spec.schema.json"


def wrong_at(data: Any) -> list[str]:
    return [error.json_path for error in SCHEMA.iter_errors(data)]


def test_it_is_a_schema_and_the_page_has_it() -> None:
    Draft7Validator.check_schema(job_spec_schema())
    assert json.loads(PAGE.read_text()) == job_spec_schema()


@pytest.mark.parametrize("template", list(Template))
def test_specs_that_are_valid_fit_it(template: Template) -> None:
    batch = BATCH.get(template, DEFAULT_BATCH)
    text = JOB.format(url="http://127.0.0.1:8642", name="x", config=CONFIG[template], batch=batch)
    assert wrong_at(yaml.safe_load(text)) == []


def test_what_a_spec_is_stored_as_fits_it() -> None:
    """Every key, resolved; so every default has the type that is told."""
    spec = parse_spec({**SMALLEST, "checkpoint": {"keep_best": {}}, "env": {"A": "1"}})
    assert spec.checkpoint.keep_best == KeepBestSpec()
    stored = spec_to_json(spec)
    assert wrong_at(stored) == []
    assert set(stored) == set(job_spec_schema()["properties"])


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"workers": {"intial": 2}}, "$.workers"),
        ({"workers": {"initial": "two"}}, "$.workers.initial"),
        ({"workers": 2}, "$.workers"),
        ({"workers": {"autoscale": "on"}}, "$.workers.autoscale"),
        ({"checkpoint": {"every": ["1h"]}}, "$.checkpoint.every"),
        ({"checkpoint": {"keep_best": {"mode": "most"}}}, "$.checkpoint.keep_best"),
        ({"secrets": "TOKEN"}, "$.secrets"),
        ({"env": {"A": 1}}, "$.env.A"),
        ({"reproducible": "yes"}, "$.reproducible"),
    ],
)
def test_what_no_spec_may_say_does_not_fit_it(given: dict[str, Any], where: str) -> None:
    assert wrong_at({**SMALLEST, **given}) == [where]


@pytest.mark.parametrize(
    "given",
    [
        {"limits": {"max_duration": "1h30m", "hang_timeout": "auto", "queue_timeout": None}},
        {"checkpoint": {"every": "auto", "max_interval": 90}},
        {"resources_per_worker": {"memory": "2GiB", "cpu": 0.5}},
        {"batch": {"num_microbatches": "auto"}},
        {"restart": {"no_retry_on_exit_codes": [3, -9]}},
        {"env": {"A": None}},
    ],
)
def test_what_people_write_fits_it(given: dict[str, Any]) -> None:
    assert wrong_at({**SMALLEST, **given}) == []


def test_every_key_has_a_meaning() -> None:
    top = job_spec_schema()
    for section in (top, *top["definitions"].values()):
        assert section["description"]
        assert all(described["description"] for described in section["properties"].values())
    assert top["required"] == ["name"]
    assert JobSpec.__dataclass_fields__.keys() == top["properties"].keys()
