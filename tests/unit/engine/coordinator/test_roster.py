from __future__ import annotations

import pytest

from rubato.engine.coordinator.roster import WorkerView
from rubato.wire import worker as wire


def view(arithmetic: dict[str, str] | None = None) -> WorkerView:
    worker = WorkerView("w1.1", "1.1", 1, 5.0, heard_at=10.0)
    if arithmetic is not None:
        worker.standby = wire.Standby("1.1", "layout", "code", 60, arithmetic)
    return worker


@pytest.mark.parametrize(
    ("arithmetic", "device"),
    [
        (None, ""),  # it has not told yet
        ({}, ""),  # of a release that did not say
        ({"device": "cpu", "cpu": "AuthenticAMD AVX2"}, "cpu"),
        ({"device": "cuda", "gpu": "NVIDIA H200", "cpu": "AuthenticAMD AVX2"}, "NVIDIA H200"),
    ],
)
def test_a_report_says_on_what_a_worker_computes(arithmetic: dict[str, str] | None, device: str) -> None:
    assert view(arithmetic).report(0, 10.0).device == device


@pytest.mark.parametrize(("now", "seconds"), [(None, None), (10.25, 0.25), (9.0, 0.0)])
def test_a_report_says_how_long_ago_a_worker_was_heard(now: float | None, seconds: float | None) -> None:
    assert view().report(None, now).silent_seconds == seconds
