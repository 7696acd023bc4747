"""Workers in network namespaces of their own, and what a network may do between them; the bits are the oracle's.

Skipped, loudly, where the kernel or the user is not allowed to make namespaces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from faulty_run import causes
from invariants import check, undisturbed
from local_job import LocalJob
from network import COMMAND, NAMESPACES, Network, NoNamespaces, network

from rubato.engine.coordinator.verdicts import REPAIRS_AT_ONE_STEP

pytestmark = pytest.mark.timeout(300)

STEPS = 60
SPEC: dict[str, Any] = {
    "batch": {"global_size": 64, "num_microbatches": 12},
    "config": {"steps": STEPS, "model": "mlp", "brake_s": 0.3},
}
VICTIM = 2
HANG_S = 8
Deed = Callable[[Network, int], None]
FAULTS: dict[str, tuple[Deed, Deed]] = {
    "cut off": (Network.cut, Network.mend),
    "interface down": (Network.take_down, Network.bring_up),
    "half-open": (Network.mute, Network.unmute),
}


@pytest.fixture
def net() -> Iterator[Network]:
    try:
        with network(workers=6) as net:
            yield net
    except NoNamespaces as error:
        pytest.skip(f"the network between workers is NOT tested here: {error}")


def job(home: Path, net: Network, **spec: Any) -> LocalJob:
    run = LocalJob(
        home, "faulty", **SPEC, workers={"initial": 3, "min": 1, "max": 4}, env={NAMESPACES: net.name}, **spec
    )
    run.run._command = COMMAND
    return run


def longest_gap_s(run: LocalJob) -> float:
    """Between two commits."""
    times = [datetime.fromisoformat(row["time"]).timestamp() for row in run.rows()]
    return max(after - before for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("fault", FAULTS)
def test_two_seconds_cost_nothing_but_their_time(tmp_path: Path, net: Network, fault: str) -> None:
    begin, end = FAULTS[fault]
    with job(tmp_path, net) as run:
        run.wait_step(5)
        begin(net, VICTIM)
        run.wait_seconds(2.0)
        end(net, VICTIM)
        check(run, undisturbed("faulty", **SPEC), fault=f"{fault} for 2 s")
    assert longest_gap_s(run) > 1.5, "the fault did not take effect"
    assert "recovery" not in causes(run)
    assert not run.events("worker.lost")


@pytest.mark.parametrize("fault", FAULTS)
def test_longer_than_the_deadline_costs_a_repair(tmp_path: Path, net: Network, fault: str) -> None:
    begin, end = FAULTS[fault]
    with job(tmp_path, net, limits={"hang_timeout": HANG_S}) as run:
        run.wait_step(5)
        begin(net, VICTIM)
        run.wait(lambda: run.status()["observed"]["phase"] == "repairing", "the repair")
        end(net, VICTIM)
        check(run, undisturbed("faulty", **SPEC), fault=f"{fault} for longer than the deadline", lost_touch=1)
    assert longest_gap_s(run) > HANG_S / 2
    assert "recovery" in causes(run)
    assert not run.events("worker.lost"), "whoever waits is not at fault"


@pytest.mark.parametrize("fault", ["cut off", "interface down"])
def test_an_outage_that_outlasts_several_repairs_fails_no_job(tmp_path: Path, net: Network, fault: str) -> None:
    begin, end = FAULTS[fault]
    restart = {"backoff": {"initial": 0.5, "max": 1.0}}
    with job(tmp_path, net, limits={"hang_timeout": HANG_S}, restart=restart) as run:
        run.wait_step(5)
        begin(net, VICTIM)
        run.wait(lambda: len(run.events("change.failed")) >= REPAIRS_AT_ONE_STEP, "repairs that lead nowhere")
        assert "lost each other" in run.status()["observed"]["reason"]
        end(net, VICTIM)
        check(run, undisturbed("faulty", **SPEC), fault=f"{fault} for several repairs", lost_touch=1)
    assert "recovery" in causes(run)
    assert not run.events("worker.lost"), "whoever waits is not at fault"
