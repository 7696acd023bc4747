"""A worker is cut off from its controller, and from nobody else, and goes on running; the bits are the oracle's.

Each Ray node has a network namespace of its own. In that of the head are service, agent and controller, and no worker;
the workers are on the two others. What is cut is the way between the head and one of these: the workers hear each other
all the time. One thing is not as on hosts of their own: the controller sees that the processes of a worker it ends are
still there, and waits 15 s for their end before it goes on without (`jobs.fleet.CONFIRM_S`).

Skipped, loudly, where the kernel or the user is not allowed to make namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rubato.cli.keeper.process_table import is_alive
from rubato.client.models import Worker
from tests.invariants import Undisturbed, check_cluster, record_cluster
from tests.network import Network, NoNamespaces, network
from tests.others_on_ray import others_hold
from tests.ray_node import RayNode, ray_node
from tests.relay import Relay
from tests.running_home import ClusterJob, RunningHome, running_home
from tests.stopping import is_stopped
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(600)
HEAD, CUT_OFF, OTHER = 1, 2, 3
SLOTS = 2
"""Of the head; others hold them."""
SHORT_S = 6.0
"""Less than until Ray takes a node for dead (13 s and more), and than a supervisor may be silent (30 s)."""
FEW_STEPS = 3
ENDS_S = 90.0
"""Until a worker that no controller was heard at for a minute has ended."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    try:
        with network(workers=3) as net:
            yield net
    except NoNamespaces as error:
        pytest.skip(f"the network between a controller and its workers is NOT tested here: {error}")


@pytest.fixture(scope="module")
def home(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    with net.inside(HEAD), running_home(tmp_path_factory.mktemp("cluster") / "home", slots=SLOTS) as home:
        yield home


@contextmanager
def node_at(net: Network, number: int, home: RunningHome, scratch: Path, slots: int) -> Iterator[RayNode]:
    """A node that hears the service all the time, whatever is cut."""
    record = home.home.read_record()
    assert record is not None
    port = int(record.url.rpartition(":")[2])
    with ExitStack() as held:
        held.callback(Relay(port, net.listen(number, port)).close)
        with net.inside(number):
            node = held.enter_context(ray_node(home, scratch, slots, address=net.address(number)))
        yield node


@contextmanager
def trains_apart(
    net: Network, home: RunningHome, scratch: Path, held_s: float
) -> Iterator[tuple[ClusterJob, Worker, RayNode]]:
    """A job of two workers, one on each node; the one that is to be cut off, and its node."""
    with ExitStack() as held:
        with net.inside(HEAD):
            held.enter_context(others_hold(home, cpu=SLOTS))
        job = home.classifier(scratch, workers=2, held_s=held_s, checkpoint={"every_steps": 5})
        job.wait_events("attempt.acquired")  # by a controller on the head: there is no other node yet
        cut_off = held.enter_context(node_at(net, CUT_OFF, home, scratch, slots=1))
        job.wait_events("worker.started")
        with node_at(net, OTHER, home, scratch, slots=2) as other:  # one of them for who takes the other's place
            members = job.wait_members(2)
            (there,) = [one for one in members if cut_off.has(one.pid)]
            assert [other.has(one.pid) for one in members] == [one is not there for one in members]
            assert not cut_off.has(job.controller_pid)
            assert not other.has(job.controller_pid)
            yield job, there, cut_off


@contextmanager
def parted(net: Network) -> Iterator[None]:
    """The head and one node do not hear each other meanwhile."""
    net.part(HEAD, CUT_OFF)
    try:
        yield
    finally:
        net.unite(HEAD, CUT_OFF)


def silent_s(job: ClusterJob, worker_id: str) -> float:
    """How long the controller has heard nothing of a worker."""
    (worker,) = [one for one in job.home.client.workers(job.id) if one.worker_id == worker_id]
    return worker.silent_seconds or 0.0


def test_a_cut_for_seconds_costs_nothing(
    running: RunningHome, net: Network, tmp_path: Path, alone: Undisturbed
) -> None:
    with trains_apart(net, running, tmp_path, held_s=0.1) as (job, there, _):
        members, formed = job.wait_members(2), job.formed()
        begun, step = datetime.now(UTC), job.now().step
        with parted(net):
            time.sleep(SHORT_S)  # the outage itself is what is tested: nothing happens that could be waited for
            assert silent_s(job, there.worker_id) > SHORT_S / 2, "it was not cut off"
            assert job.now().step >= step + FEW_STEPS, "somebody waited for it"
        job.wait(lambda: silent_s(job, there.worker_id) < SHORT_S / 2, "a word of it")
        job.wait_step(job.now().step + FEW_STEPS)
        assert [one.pid for one in job.wait_members(2)] == [one.pid for one in members]
        assert [event.data for event in job.formed()[: len(formed)]] == [event.data for event in formed]
        check_cluster(job, alone)
    assert [event.attempt for event in job.events("attempt.acquired")] == [1]
    assert "recovery" not in [event.data["cause"] for event in job.formed()]
    assert not job.events("worker.lost")
    record_cluster(job, "controller cut off from one of two workers for 6 s", "test_partition.py", since=begun)


def test_a_cut_for_longer_than_the_limits_fences_a_worker_that_runs(
    running: RunningHome, net: Network, tmp_path: Path, alone: Undisturbed
) -> None:
    with trains_apart(net, running, tmp_path, held_s=0.3) as (job, there, cut_off):
        begun, step = datetime.now(UTC), job.now().step
        before = len(job.events("worker.lost"))  # started on a node of the job before that was just going
        processes = [one for one in cut_off.processes() if one.pid in (there.pid, there.supervisor_pid)]
        assert len(processes) == 2
        with parted(net):
            job.wait_step(step + FEW_STEPS)
            assert silent_s(job, there.worker_id) > 1.0, "it was not cut off"
            (lost,) = job.wait_events("worker.lost", before + 1)[before:]
            assert lost.data["worker_id"] == there.worker_id
            print(f"fenced {datetime.fromisoformat(lost.time) - begun} after the cut: {lost.data['cause']}")
            job.wait_formed(1, after=lost.position)
            # It has been fenced, and knows nothing of it.
            assert all(is_alive(one) and not is_stopped(one.pid) for one in processes)
            job.wait_step(job.now().step + FEW_STEPS)
        wait_for(lambda: not any(map(is_alive, processes)), "the end of the worker that was cut off", ENDS_S)
        job.wait_members(2)
        check_cluster(job, alone)
        said = [event for event in running.client.events(job.id) if event.data.get("worker_id") == there.worker_id]
        assert said[-1].position == lost.position, "it told something"
    assert [event.attempt for event in job.events("attempt.acquired")] == [1]
    assert len(job.events("worker.lost")) == before + 1
    row = "controller cut off from one of two workers for longer than its limits"
    record_cluster(job, row, "test_partition.py", since=begun)
