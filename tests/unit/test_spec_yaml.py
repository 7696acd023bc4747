from __future__ import annotations

from typing import Any

import pytest
import yaml

from rubato.spec_yaml import SpecLoader, describe_yaml_error


def read(text: str) -> Any:
    return yaml.load(text, SpecLoader)


@pytest.mark.parametrize(
    "key", ["on", "off", "yes", "no", "y", "true", "null", "~", "1", "1.50", "0x10", "2026-01-31", "="]
)
def test_a_key_is_the_text_that_is_written(key: str) -> None:
    assert read(f"{key}: 1") == {key: 1}
    assert read(f"[{{a: {{{key}: 1}}}}]") == [{"a": {key: 1}}]


@pytest.mark.parametrize("text", ["on: 1\non: 2", "a: {b: 1, 'b': 2}", "1: 1\n'1': 2"])
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="stands twice"):
        read(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\n  b: 2\n", "line 2, column 4: a colon where no key can stand"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2: this line does not fit the indentation"),
        ("a:\n\t- 1\n", "line 2, column 1: a character that needs quotes, or a tab"),
        ("a: 1\nbcd\ne: 2\n", "line 3, column 1: a key without its colon"),
        ("a: [1\n", "line 1, column 4: what begins here is not closed"),
        ("on: 1\non: 2", "the key 'on' stands twice (line 2)"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        read(text)
    assert describe_yaml_error(raised.value).startswith(told)


@pytest.mark.parametrize("text", ["? [1]\n: 2", "? {a: 1}\n: 2"])
def test_a_key_that_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="the key at line 1 is no text"):
        read(text)


def test_a_mapping_may_take_over_another_and_change_some_of_it() -> None:
    text = "a: &a {on: 1, lr: 1e-3}\nb: &b {<<: *a, lr: 2}\nc: {<<: [*b, *a], off: 3}"
    assert read(text) == {"a": {"on": 1, "lr": 0.001}, "b": {"on": 1, "lr": 2}, "c": {"on": 1, "lr": 2, "off": 3}}


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("-.5e1", -5.0), ("1e3x", "1e3x"), ("2026-01-31", "2026-01-31"), ("no", False)]
)
def test_values(text: str, value: object) -> None:
    found = read(text)
    assert (found, type(found)) == (value, type(value))
