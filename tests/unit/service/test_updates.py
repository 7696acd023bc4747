"""Merge patches of a spec."""

from __future__ import annotations

from typing import Any

import pytest

from rubato.wire.spec import parse_spec, spec_to_json
from service.errors import ServiceError
from service.updates import CHANGEABLE, check_patch, differences, merge_patch, patched_spec

SPEC = spec_to_json(parse_spec({"name": "digits", "recipe": "image-classifier", "workers": {"initial": 2, "max": 4}}))
LIMIT = 256 * 1024


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        # Appendix A of RFC 7396.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_are_those_of_the_rfc(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged


def test_a_merge_changes_nothing_in_place() -> None:
    before = {"labels": {"team": "vision"}}
    merge_patch(before, {"labels": {"team": None, "owner": "me"}})
    assert before == {"labels": {"team": "vision"}}


def test_all_that_may_change_is_a_field_of_the_spec() -> None:
    for section, names in CHANGEABLE.items():
        assert names <= SPEC[section].keys()


def test_the_differences_name_leaves_and_nothing_else() -> None:
    after = spec_to_json(patched_spec(SPEC, {"labels": {"a": "b"}, "limits": {"queue_timeout": "1h"}}, LIMIT))
    assert dict(differences(SPEC, after)) == {
        "labels.a": {"from": None, "to": "b"},
        "limits.queue_timeout": {"from": None, "to": 3600.0},
    }
    assert list(differences(after, after)) == []


@pytest.mark.parametrize(("bounds", "initial"), [({"min": 3}, 3), ({"max": 1}, 1), ({"min": 1, "max": 8}, 2)])
def test_the_initial_count_stays_within_the_bounds(bounds: dict[str, int], initial: int) -> None:
    assert patched_spec(SPEC, {"workers": bounds}, LIMIT).workers.initial == initial


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"seed": 3}, "seed"),
        ({"workers": {"initial": 3}}, "workers.initial"),
        ({"workers": 3}, "workers"),
        ({"limits": None}, "limits"),
        ({"limits": {"colour": 1}}, "limits.colour"),
    ],
)
def test_nothing_else_may_change(patch: Any, path: str) -> None:
    with pytest.raises(ServiceError) as refused:
        check_patch(patch)
    assert [finding.path for finding in refused.value.findings] == [path]
