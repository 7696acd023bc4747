from __future__ import annotations

from typing import Any

import pytest

from service.scheduling.capacity import Shape
from service.scheduling.unplaced import NodeUse, decide_unplaced
from tests.unit.service.scheduling.worlds import placed


def node(name: str = "a", cpu: float = 8, cpu_used: float = 0, gpu: float = 0, gpu_used: float = 0) -> NodeUse:
    return NodeUse(name, cpu, gpu, cpu_used, gpu_used)


@pytest.mark.parametrize(
    ("job", "nodes", "told"),
    [
        # All have their places, or will have one in a moment: Ray has room.
        ({"granted": 2, "nodes": ("a", "a")}, [node(cpu_used=8)], None),
        ({"granted": 4, "nodes": ("a", "a")}, [node(cpu_used=6)], None),
        # What keeps them waiting are workers of ours that have not gone yet.
        ({"granted": 4, "nodes": ("a", "a")}, [node(cpu=2, cpu_used=2)], None),
        ({"granted": 4, "nodes": ("a", "a")}, [node(cpu_used=8)], (2, "6 of 8 CPU slots")),
        ({"granted": 4, "nodes": ("a", "a")}, [node(cpu_used=7)], (1, "5 of 8 CPU slots")),
        ({"granted": 4, "nodes": (), "is_leaving": True}, [node(cpu_used=8)], None),
        ({"granted": 1, "granted_standby": 1, "nodes": ("a",)}, [node(cpu_used=8)], (1, "7 of 8 CPU slots")),
        # A worker must fit onto one node, and what we hold of one hides nothing of another.
        (
            {"granted": 2, "nodes": ("a",), "shape": Shape(cpu=4, gpu=0)},
            [node("a", cpu_used=5.5), node("b", cpu_used=4.5)],
            (1, "6 of 16 CPU slots"),
        ),
        ({"granted": 2, "nodes": ("a",)}, [node("a", cpu=1, cpu_used=0.5), node("b", 1, 1)], (1, "1 of 2 CPU slots")),
        (
            {"granted": 2, "nodes": ("a",), "shape": Shape(cpu=1, gpu=1)},
            [node(cpu_used=3, gpu=2, gpu_used=2)],
            (1, "1 of 2 GPUs"),
        ),
    ],
)
def test_what_keeps_workers_from_their_places(
    job: dict[str, Any], nodes: list[NodeUse], told: tuple[int, str] | None
) -> None:
    one = placed("one", **job)
    found = decide_unplaced(one, [one], nodes)
    if told is None:
        assert found is None
    else:
        count = f"{told[0]} more worker" + ("" if told[0] == 1 else "s")
        assert found == f"Ray has no place for {count} yet: others than Rubato hold {told[1]}"


def test_workers_of_other_jobs_are_not_others() -> None:
    one, other = placed("one", 2, nodes=("a",)), placed("other", 5, nodes=("a",) * 5)
    assert decide_unplaced(one, [one, other], [node(cpu_used=8)]) == (
        "Ray has no place for 1 more worker yet: others than Rubato hold 2 of 8 CPU slots"
    )
    assert decide_unplaced(one, [one, other], [node(cpu=6, cpu_used=6)]) is None


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        # Its own worker went, and the only node is cordoned.
        ([], "there is no place for 1 more worker; vm takes no new workers"),
        ([node("b", cpu=1, cpu_used=0)], None),
        # What others hold where workers could go is the nearer reason.
        ([node("b", cpu_used=8)], "Ray has no place for 1 more worker yet: others than Rubato hold 8 of 8 CPU slots"),
    ],
)
def test_nodes_that_take_no_new_workers_are_named_where_they_are_missed(nodes: list[NodeUse], told: str | None) -> None:
    one = placed("one", 2, nodes=("a",))
    assert decide_unplaced(one, [one], nodes, shut=["vm"]) == told
