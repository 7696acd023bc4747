"""The page's types say what the service sends: names, and what may be null."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from api import access_schemas, operations_schemas, schemas, secret_schemas, webhook_schemas
from rubato.planner.batches import Batch
from rubato.planner.choose import Plan
from rubato.planner.options import Option
from rubato.wire.cluster import Failure, WorkerReport
from rubato.wire.status import FINAL, Status

SOURCE = (Path(__file__).resolve().parents[3] / "web" / "src" / "wire.ts").read_text()


def page_fields(interface: str) -> dict[str, bool]:
    """Each field of an interface of the page, and whether it may be null; optional ones (`?`) are not promised."""
    body = re.search(rf"export interface {interface} {{\n(.*?)\n}}", SOURCE, re.DOTALL)
    assert body, f"web/src/wire.ts has no interface {interface}"
    lines = re.findall(r"^  (\w+): (.+);$", body.group(1), re.MULTILINE)
    assert lines
    return {name: kind.endswith("| null") for name, kind in lines}


def service_fields(model: type) -> dict[str, bool]:
    """The same of a type of the service."""
    if issubclass(model, BaseModel):
        return {name: type(None) in typing.get_args(field.annotation) for name, field in model.model_fields.items()}
    hints = typing.get_type_hints(model)
    return {field.name: type(None) in typing.get_args(hints[field.name]) for field in dataclasses.fields(model)}


@pytest.mark.parametrize(
    ("interface", "model"),
    [
        ("Job", schemas.JobItem),
        ("JobEvent", schemas.Event),
        ("MetricRow", schemas.MetricRow),
        ("LogLine", schemas.LogLine),
        ("Failure", Failure),
        ("Worker", WorkerReport),
        ("Node", operations_schemas.Node),
        ("NodeJob", operations_schemas.NodeJob),
        ("Token", access_schemas.Token),
        ("User", access_schemas.User),
        ("Project", access_schemas.Project),
        ("Secret", secret_schemas.Secret),
        ("Webhook", webhook_schemas.Webhook),
        ("Delivery", webhook_schemas.Delivery),
        ("Plan", Plan),
        ("PlanBatch", Batch),
        ("PlanOption", Option),
    ],
)
def test_the_page_reads_what_the_service_sends(interface: str, model: type) -> None:
    assert page_fields(interface) == service_fields(model)


def test_the_page_reads_no_field_of_a_checkpoint_that_does_not_exist() -> None:
    assert page_fields("Checkpoint").items() <= service_fields(schemas.Checkpoint).items()


def test_the_page_knows_every_status_and_which_are_final() -> None:
    listed = re.search(r"STATUSES.*?= \[(.*?)\];", SOURCE, re.DOTALL)
    final = re.search(r"FINAL.*?= new Set\(\[(.*?)\]\)", SOURCE)
    assert listed
    assert final
    assert set(re.findall(r'"(\w+)"', listed.group(1))) == {str(status) for status in Status}
    assert set(re.findall(r'"(\w+)"', final.group(1))) == {str(status) for status in FINAL}
