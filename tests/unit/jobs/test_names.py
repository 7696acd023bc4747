from __future__ import annotations

import pytest

from jobs.names import ActorName, controller_name, parse_listing, parse_name, worker_name


def test_names_can_be_taken_apart_again() -> None:
    assert parse_name(controller_name("job_1")) == ActorName("job_1")
    assert parse_name(worker_name("job_1", "2.13")) == ActorName("job_1", "2.13")


@pytest.mark.parametrize("name", ["", "ctl-", "w-", "w-job_1", "w-job_1-", "somebody else's"])
def test_what_is_not_ours_is_left_alone(name: str) -> None:
    assert parse_name(name) is None


def test_other_namespaces_are_left_alone() -> None:
    listing = [{"name": "ctl-a", "namespace": "rubato"}, {"name": "ctl-b", "namespace": "theirs"}]
    assert parse_listing(listing) == [ActorName("a")]
