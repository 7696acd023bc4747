from __future__ import annotations

from typing import get_args

import pytest

from rubato.errors import SpecError
from rubato.wire.spec import MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, StatusName, parse_spec
from rubato.wire.status import Status

SMALLEST = {"name": "a", "entrypoint": "train.py"}


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_process_can_be_given_in_its_environment_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match=r"env.A: holds a NUL or half a character"):
        parse_spec({**SMALLEST, "env": {"A": value, "B": "b"}})


@pytest.mark.parametrize("value", ["", "naïve", "caf\udce9"])
def test_what_a_process_can_be_given_is_taken(value: str) -> None:
    assert parse_spec({**SMALLEST, "env": {"A": value}}).env == {"A": value}


def test_a_job_may_ask_to_be_told_of_every_status_there_is() -> None:
    assert set(get_args(StatusName)) == set(Status)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"on": ["done"], "webhook": "team"},
            r"notifications\[0\].on\[0\]: must be one of .*'succeeded'.*, got 'done'",
        ),
        ({"on": [], "webhook": "team"}, r"notifications\[0\].on: name at least one status"),
        ({"on": "failed", "webhook": "team"}, r"notifications\[0\].on: expected a list"),
    ],
)
def test_what_is_wrong_with_a_notification_is_said(asked: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec({**SMALLEST, "notifications": [asked]})


def test_off_is_not_false() -> None:
    """YAML 1.1 reads `autoscale: off` as a truth value."""
    assert parse_spec({**SMALLEST, "workers": {"autoscale": False}}).workers.autoscale == "off"
    with pytest.raises(SpecError, match="autoscale: must be one of"):
        parse_spec({**SMALLEST, "workers": {"autoscale": True}})


def test_as_many_and_as_long_labels_as_are_allowed_are_taken() -> None:
    labels = {f"{number:0{MAX_LABEL_KEY}}": "\u00e9" * MAX_LABEL_VALUE for number in range(MAX_LABELS)}
    assert parse_spec({**SMALLEST, "labels": labels}).labels == labels


@pytest.mark.parametrize(
    ("labels", "path", "message"),
    [
        ({f"{number}": "" for number in range(65)}, "labels", "at most 64 are allowed, got 65"),
        ({"k" * 65: ""}, "labels", f"the key '{'k' * 64}'... must have at most 64 characters, got 65"),
        ({"note": "x" * 257}, "labels.note", "must have at most 256 characters, got 257"),
    ],
)
def test_labels_beyond_that_are_refused(labels: dict[str, str], path: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({**SMALLEST, "labels": labels})
    (finding,) = refused.value.findings
    assert (finding.path, finding.message) == (path, f"{message}; put what is not filtered by into config")
