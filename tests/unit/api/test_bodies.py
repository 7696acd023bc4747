from __future__ import annotations

import json

import pytest

from api.bodies import parse_json, parse_report_json, parse_yaml
from rubato.cli.specfile import read_yaml
from service.errors import ServiceError

SPEC = """
name: digits
config: {lr: 1e-3, big: 1E5, exact: 0.5, count: 3, name: 1e, yes_no: yes}
workers: {initial: 2}
when: 2026-01-31
"""


def test_yaml_gives_plain_json_types() -> None:
    assert parse_yaml(SPEC.encode()) == {
        "name": "digits",
        "config": {"lr": 0.001, "big": 100_000.0, "exact": 0.5, "count": 3, "name": "1e", "yes_no": True},
        "workers": {"initial": 2},
        "when": "2026-01-31",
    }


def test_a_key_of_yaml_is_a_text_as_on_the_command_line() -> None:
    text = "notifications: [{on: [failed], webhook: team}]\nconfig: {no: 1, 1: yes}\nlabels: {off: x}"
    assert parse_yaml(text.encode()) == {
        "notifications": [{"on": ["failed"], "webhook": "team"}],
        "config": {"no": 1, "1": True},
        "labels": {"off": "x"},
    }
    assert parse_yaml(text.encode()) == read_yaml(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x", "not allowed"),
        ("a: 1\na: 2", "twice"),
        ("a: [", "no YAML"),
        ("? [1]\n: 2", "no text"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
        ("a: !!binary aGk=", "bytes"),
        ("a: !!set {x}", "set"),
        ("a: .nan", "not finite"),
        ("a: .inf", "not finite"),
        ("a" * 10 + ": " + "[" * 40 + "]" * 40, "nested deeper"),
        ("[" * 5000, "nested deeper"),
        ('a: "\\0"', "NUL"),
        ('"\\0": a', "NUL"),
        ("--- 1\n--- 2", "no YAML"),
    ],
)
def test_yaml_traps_are_refused(text: str, says: str) -> None:
    with pytest.raises(ServiceError, match=says):
        parse_yaml(text.encode())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ('{"a": NaN}', "NaN is not allowed"),
        ('{"a": 1e999}', "not finite"),
        ('"\\ud800"', "surrogate"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("[" * 100_000, "nested deeper than 32"),
        ('{"a": [{"b": 1, "c": 2, "b": 3}]}', "the key 'b' stands twice"),
        ("1" * 5000, "no JSON"),
        ("\xff", "no JSON"),
    ],
)
def test_json_traps_are_refused(text: str, says: str) -> None:
    with pytest.raises(ServiceError, match=says):
        parse_json(text.encode("latin-1"))


def test_reports_are_cleaned_instead_of_refused() -> None:
    data = parse_report_json(b'{"loss": NaN, "line": "a\\u0000b\\ud83d", "fine": "\\ud83d\\ude00"}')
    assert data["loss"] != data["loss"]
    assert data["line"] == "a\ufffdb\ufffd"
    assert data["fine"] == "\U0001f600"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "x\\u0000y"}',
        b'{"a": "x\\ud800y"}',
        b'{"a": "x\\uDFFFy"}',
        b'{"a": "x\xed\xa0\x80y"}',
        '{"a": "x\\u0000y"}'.encode("utf-16"),
        '{"a": "x\\ud800y"}'.encode("utf-32-le"),
    ],
)
def test_what_no_database_takes_is_cleaned_however_it_is_written(body: bytes) -> None:
    assert parse_report_json(body) == {"a": "x\ufffdy"}


@pytest.mark.parametrize("text", ["caf\u00e9 \u2588", "\U0001f600", "\ud55c\uad6d", "back \\\\u0000 slash"])
def test_other_texts_come_through_as_they_are(text: str) -> None:
    for is_ascii in (True, False):
        assert parse_report_json(json.dumps({"a": text}, ensure_ascii=is_ascii).encode()) == {"a": text}
