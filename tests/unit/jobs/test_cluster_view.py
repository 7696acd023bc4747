from __future__ import annotations

from jobs.cluster_view import node_report

NODE = {
    "NodeID": "abc",
    "Alive": True,
    "NodeManagerAddress": "10.0.0.1",
    "NodeManagerHostname": "host",
    "Resources": {"CPU": 8.0, "GPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0, "accelerator_type:H100": 1.0},
}


def test_what_is_free_tells_what_is_used() -> None:
    report = node_report(NODE, {"CPU": 5.5, "memory": 1.0})
    assert (report.node_id, report.address, report.hostname) == ("abc", "10.0.0.1", "host")
    assert (report.cpu, report.cpu_used, report.gpu, report.gpu_used) == (8.0, 2.5, 2.0, 2.0)
    assert (report.memory, report.accelerators) == (1e9, ("H100",))


def test_where_nothing_is_known_nothing_counts_as_used() -> None:
    report = node_report(NODE, None)
    assert (report.cpu_used, report.gpu_used) == (0.0, 0.0)


def test_a_node_that_ray_lets_go_is_told_with_the_time_that_is_left() -> None:
    assert (node_report(NODE, None).draining, node_report(NODE, None).drain_within_s) == (False, None)
    noticed = node_report(NODE, None, deadline_ms=1_090_000, now_s=1000.0)
    assert (noticed.draining, noticed.drain_within_s) == (True, 90.0)
    late = node_report(NODE, None, deadline_ms=990_000, now_s=1000.0)
    assert (late.draining, late.drain_within_s) == (True, 0.0)
    unhurried = node_report(NODE, None, deadline_ms=0, now_s=1000.0)
    assert (unhurried.draining, unhurried.drain_within_s) == (True, None)
