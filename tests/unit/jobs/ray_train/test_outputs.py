"""Whose lines are whose, in whatever order a worker and its group are heard."""

from __future__ import annotations

import itertools

import pytest

from jobs.ray_train.messages import WorkerOutput
from jobs.ray_train.outputs import Outputs
from rubato.wire.cluster import LogLine, WorkerReport


def written(pid: int, *lines: str, node_id: str = "n1") -> WorkerOutput:
    return WorkerOutput(0, pid, node_id, tuple(("2026-01-01T00:00:00Z", "stdout", line) for line in lines))


def group(pid: int, worker_id: str, node_id: str = "n1") -> list[WorkerReport]:
    return [WorkerReport(worker_id, "1.1", 0, pid, None, "host", "active", node_id=node_id)]


def said(lines: list[LogLine]) -> list[tuple[str, str]]:
    return [(line.worker_id, line.line) for line in lines]


def test_lines_of_two_groups_whatever_is_heard_first() -> None:
    deeds = {
        "first group": lambda outputs: outputs.name(group(10, "w1.1")),
        "second group": lambda outputs: outputs.name(group(20, "w1.2")),
        "first worker": lambda outputs: outputs.take(written(10, "a", "b")),
        "second worker": lambda outputs: outputs.take(written(20, "c")),
    }
    for order in itertools.permutations(deeds):
        outputs = Outputs()
        found = [line for name in order for line in said(deeds[name](outputs))]
        assert sorted(found) == [("w1.1", "a"), ("w1.1", "b"), ("w1.2", "c")], order
        assert said(outputs.end()) == [], order


def test_a_process_number_is_of_one_node() -> None:
    outputs = Outputs()
    outputs.name([*group(10, "w1.1"), *group(10, "w1.2", node_id="n2")])
    assert said(outputs.take(written(10, "here", node_id="n2"))) == [("w1.2", "here")]


@pytest.mark.parametrize("is_late", [False, True])
def test_of_a_group_that_never_started_no_line_is_lost(is_late: bool) -> None:
    outputs = Outputs()
    output = written(10, "an import failed")
    found = said(outputs.end()) + said(outputs.take(output)) if is_late else said(outputs.take(output) + outputs.end())
    assert found == [("", "an import failed")]
