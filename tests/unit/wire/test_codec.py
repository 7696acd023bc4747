"""The quick readers decide exactly as the slow way, which names what is wrong."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import Finding, SpecError
from rubato.wire import WIRE_VERSION, codec
from rubato.wire.cluster import EventReport, LogLine, MetricRow, Observed, Outcome, Report, Result, SyncRequest
from rubato.wire.codec import from_json, to_json
from rubato.wire.spec import parse_spec

TIME = "2026-01-31T12:00:00Z"
REPORT = Report(
    attempt=3,
    batch=1,
    wire_version=WIRE_VERSION,
    observed=Observed("running", "training", 1, 2, 0, 7, None, 0, 0),
    workers=(),
    events=(EventReport(1, TIME, "worker.ready", "it happened", 7, None, {"deep": [1, {"a": None}]}),),
    metrics=(MetricRow(7, TIME, 1, 2, {"loss": 0.5, "whole": 1}), MetricRow(8, TIME, 1, 2, {})),
    logs=(LogLine("w1", 0, TIME, "stdout", "a line"), LogLine("", None, TIME, "system", "dropped")),
    outcome=Outcome(state="succeeded", result=Result(digest="00", step=8)),
)
JSON: dict[str, Any] = to_json(REPORT)
ODD = st.sampled_from([None, True, 0, 1, -1, 1.0, 2.5, "", "text", "stdout", "running", [], [1], {}, {"a": 1}])


def slowly(kind: type, data: Any) -> Any:
    findings: list[Finding] = []
    value = codec._decode(kind, data, "", findings, strict=False)
    return [str(finding) for finding in findings] or value


def quickly(kind: type, data: Any) -> Any:
    try:
        return from_json(kind, data)
    except SpecError as error:
        return [str(finding) for finding in error.findings]


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every container in it, with each of its keys."""
    found: list[tuple[Any, Any]] = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += [(data, key), *places(value)]
    return found


def test_a_report_is_read_without_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_json(Report, JSON) == REPORT

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the slow way was taken")

    monkeypatch.setattr(codec, "_decode", refuse)
    assert from_json(Report, JSON) == REPORT
    assert type(from_json(Report, JSON).metrics[0].values["whole"]) is float


@given(data=st.data())
def test_whatever_is_wrong_both_ways_say_the_same(data: st.DataObject) -> None:
    changed = copy.deepcopy(JSON)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(changed)))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = data.draw(ODD)
    assert quickly(Report, changed) == slowly(Report, changed)


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_key_that_is_no_text_is_refused(is_strict: bool) -> None:
    row = {"step": 7, "time": TIME, "generation": 1, "workers": 2, "values": {1: 0.5, "loss": 0.5}}
    with pytest.raises(SpecError) as caught:
        from_json(MetricRow, row, strict=is_strict)
    assert [str(finding) for finding in caught.value.findings] == ["values: the key 1 is no text"]


@given(ODD)
def test_what_is_no_object_is_refused_by_both(data: Any) -> None:
    assert quickly(SyncRequest, data) == slowly(SyncRequest, data)


@dataclass(frozen=True)
class Picky:
    level: Literal["low", "high"]
    count: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise SpecError([Finding("count", "must not be negative")])


@dataclass(frozen=True)
class Holder:
    inner: Picky


def test_checks_of_a_class_keep_their_path() -> None:
    assert quickly(Holder, {"inner": {"level": "low", "count": -1}}) == ["inner.count: must not be negative"]
    assert quickly(Holder, {"inner": {"level": "high", "newer": 1}}) == Holder(Picky("high"))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_number_for_a_text_is_told_that_quotes_make_it_one(is_strict: bool) -> None:
    """Modules of a sequence have such names."""
    with pytest.raises(SpecError, match='expected a string, got 8: in quotes it is one, "8"'):
        parse_spec({"name": "a", "entrypoint": "a.py:b", "local_updates": {"cut": 8}}, strict=is_strict)
