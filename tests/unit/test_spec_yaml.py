from __future__ import annotations

from typing import Any

import pytest
import yaml

from rubato.spec_yaml import SpecLoader


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
