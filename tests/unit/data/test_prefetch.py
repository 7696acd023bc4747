"""With real processes: what is read ahead is what would have been read, and no fate of a process changes that."""

from __future__ import annotations

import itertools
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import own_generators
from hypothesis import given
from hypothesis import strategies as st
from programs.reading import Arithmetic, Descriptors, Failing, Held, Noisy, Slow
from stopping import stopped

from rubato.data import prefetch
from rubato.data.order import BatchPlan
from rubato.data.prefetch import Key, Prefetcher, share_out
from rubato.data.randomness import seed_all
from rubato.data.source import MapSource
from rubato.errors import ModelError
from rubato.wire.events import EventKind

pytestmark = pytest.mark.usefixtures("generators")

PATIENCE_S = 110.0
BEYOND_SELECT = 1024
"""FD_SETSIZE: select(2) refuses descriptors from here on."""
PLAN = BatchPlan(num_samples=40, global_size=16, num_microbatches=4, seed=5)


def keys_from(step: int, owned: Container[int] = range(4)) -> Iterator[Key]:
    for later in itertools.count(step):
        yield from ((later, v, 1) for v, size in enumerate(PLAN.sizes(later)) if size and v in owned)


class Reading:
    """A prefetcher over all keys, what it told, and the keys still to come."""

    def __init__(self, dataset: Any, count: int = 2, collate: Any = None) -> None:
        self.source = MapSource(dataset, collate, PLAN)
        self.told: list[tuple[EventKind, str]] = []
        self.key: Key = (0, 0, 1)
        self.owned = [0, 1, 2, 3]
        self.ahead = Prefetcher(self.source, count, self.upcoming, lambda kind, text: self.told.append((kind, text)))

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        pids = self.ahead.pids
        self.ahead.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    def upcoming(self) -> Iterator[Key]:
        return itertools.dropwhile(lambda key: key < self.key, keys_from(self.key[0], self.owned))

    def own(self, owned: list[int]) -> None:
        """Other microbatches from the next step on, as after a resize."""
        self.owned, self.key = owned, next(keys_from(self.key[0] + 1, owned))

    def read(self) -> tuple[Key, Any]:
        """The next key, and its batch."""
        key = self.key
        batch = self.ahead.read(*key)
        self.key = next(itertools.islice(self.upcoming(), 1, None))
        return key, batch

    def wait(self, condition: Callable[[], bool]) -> None:
        """Read on until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.told
            self.read()
            time.sleep(0.01)

    def ready(self) -> Reading:
        """Go on once a process reads, and without having read anything."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(one.is_ready for one in self.ahead._readers.values()):
            assert time.monotonic() < deadline, self.told
            self.ahead._take_in(0.1)
        return self

    def warm(self) -> Reading:
        """Go on once a process has delivered."""
        self.wait(lambda: self.ahead.read_ahead > 0)
        return self

    @property
    def kinds(self) -> list[EventKind]:
        return [kind for kind, _ in self.told]


def check(read: tuple[Key, dict[str, Any]]) -> None:
    key, batch = read
    expected = MapSource(Noisy(), None, PLAN).read(*key)
    assert batch.keys() == expected.keys()
    assert batch["name"] == expected["name"]
    assert all(torch.equal(batch[name], expected[name]) for name in ("x", "y", "sum"))


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    """One for all tests that leave it as it was: a process takes seconds to start."""
    with own_generators(), Reading(Noisy()) as reading:
        yield reading.warm()


def test_batches_are_those_that_would_have_been_read(reading: Reading) -> None:
    read_here = reading.ahead.read_here
    for _ in range(30):
        seed_all(1, "somewhere else")
        check(reading.read())
    assert reading.ahead.read_here - read_here <= 2
    assert not reading.told


def test_tensors_are_fresh(reading: Reading) -> None:
    for _ in range(5):
        x = reading.read()[1]["x"]
        assert x.data_ptr() % 64 == 0
        assert x.untyped_storage().nbytes() == x.nbytes
        x.zero_()


def test_what_is_not_wanted_any_more_is_dropped(reading: Reading) -> None:
    for keep in ([0, 2], [1], [3, 1], [0, 1, 2, 3]):  # other owners, as after a resize or a recovery
        reading.own(keep)
        for _ in range(3):
            check(reading.read())
        assert len(reading.ahead._arrived) + len(reading.ahead._owed) <= 1 + prefetch.AHEAD * 2


def test_what_was_withdrawn_while_it_was_on_its_way_is_delivered_again(reading: Reading) -> None:
    def wish(key: Key) -> None:
        reading.key = key
        reading.ahead._plan((key[0] - 1, 3, 1))

    while reading.ahead._owed:
        reading.ahead._take_in(0.1)
    wanted = (reading.key[0] + 2, 0, 1)
    wish(wanted)
    reader = reading.ahead._readers[reading.ahead._owed[wanted]]
    assert select.select([reader.connection], (), (), PATIENCE_S)[0], "it is on its way"
    with stopped(reader.child.pid):  # so that it sees only the last wish
        wish((wanted[0] + 9, 0, 1))
        reading.ahead._take_in(0)  # it has arrived, and is dropped
        wish(wanted)
    check(reading.read())
    assert not reading.told


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.long)])
def test_a_killed_process_is_replaced(reading: Reading, number: signal.Signals) -> None:
    victim = reading.ahead.pids[0]
    os.kill(victim, number)
    count = len(reading.told)
    reading.wait(lambda: len(reading.told) > count)
    kind, text = reading.told[-1]
    assert kind is EventKind.PREFETCH_LOST
    assert f"process {victim} was replaced: it ended with {number.name}" in text
    assert len(reading.ahead.pids) == 2
    reading.wait(lambda: all(one.is_ready for one in reading.ahead._readers.values()))
    for _ in range(10):
        check(reading.read())


def test_a_process_that_hangs_is_replaced_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    with Reading(Held(str(hold), os.getpid()), count=1).warm() as reading:
        hold.touch()
        monkeypatch.setattr(prefetch, "STALL_S", 0.3)
        monkeypatch.setattr(prefetch, "STALL_FACTOR", 0.0)
        for _ in range(2 + prefetch.AHEAD):  # what it had ready, and the one it hangs in
            check(reading.read())
        assert EventKind.PREFETCH_LOST in reading.kinds
        assert "it did not deliver a microbatch within 0.3 s" in reading.told[0][1]
        hold.unlink()


def test_samples_that_are_slow_are_waited_for_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with Reading(Slow(0.1), count=1).ready() as reading:
        monkeypatch.setattr(prefetch, "STALL_S", 0.2)  # a microbatch takes twice as long
        monkeypatch.setattr(prefetch, "_POLL_S", 0.05)
        reading.ahead.waits, reading.ahead.reads = (lambda: said.append("waits")), (lambda: said.append("reads"))
        reading.wait(lambda: reading.ahead.read_ahead >= 3)
        assert reading.kinds.count(EventKind.PREFETCH_LOST) <= 1, reading.told
        assert EventKind.PREFETCH_OFF not in reading.kinds
    assert said.count("reads") == reading.ahead.read_here > 0
    assert "waits" in said


@pytest.fixture
def descriptors() -> Iterator[None]:
    """So many files are open that what is opened now lies beyond what select(2) can look at."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = BEYOND_SELECT + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"at most {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if soft == resource.RLIM_INFINITY else max(soft, wanted), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < BEYOND_SELECT:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors")
def test_many_open_files_are_no_hindrance() -> None:
    with Reading(Noisy(), count=1) as reading:
        (reader,) = reading.ahead._readers.values()
        assert reader.connection.fileno() >= BEYOND_SELECT
        reading.warm()
        check(reading.read())
        assert not reading.told


def read_on(reading: Reading) -> None:
    for _ in range(50):
        reading.read()


def test_an_error_of_the_dataset_is_raised_as_without_processes() -> None:
    with Reading(Failing(sample=7), count=1).ready() as reading, pytest.raises(OSError, match="disk gone") as caught:
        read_on(reading)
    assert "while reading sample 7 of the Failing (epoch 0)" in caught.value.__notes__


def test_what_only_processes_cannot_read_is_read_here_and_told() -> None:
    with Reading(Failing(good_pid=os.getpid()), count=1) as reading:
        reading.wait(lambda: EventKind.PREFETCH_OFF in reading.kinds)
        assert reading.kinds == [EventKind.PREFETCH_FAILED, EventKind.PREFETCH_FAILED, EventKind.PREFETCH_OFF]
        assert all("OSError: disk gone" in text and "while reading sample" in text for _, text in reading.told)
        assert not reading.ahead.pids
        check(reading.read())


def collate_to_something_that_does_not_pickle(rows: list[Any]) -> Any:
    return (row for row in rows)


def test_a_batch_that_cannot_be_sent_is_read_here() -> None:
    with Reading(Noisy(), 1, collate_to_something_that_does_not_pickle) as reading:
        reading.wait(lambda: EventKind.PREFETCH_OFF in reading.kinds)
        assert "cannot pickle 'generator' object" in reading.told[-1][1]
        assert len(list(reading.read()[1])) == 4


def test_processes_that_cannot_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch.process, "__name__", "rubato.no_such_module")
    with Reading(Noisy()) as reading:
        reading.wait(lambda: EventKind.PREFETCH_OFF in reading.kinds)
        assert (
            "3 processes were lost without delivering anything, the last because it ended with exit code 1"
            in (reading.told[-1][1])
        )
        check(reading.read())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refuse_to_start(*_: Any, **__: Any) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_machine_that_starts_no_process_reads_here(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    monkeypatch.setattr(subprocess, "Popen", refuse_to_start)
    with Reading(Noisy()) as reading:
        check(reading.read())
        assert reading.told == [
            (
                EventKind.PREFETCH_OFF,
                "samples are not read ahead any more: no process could be started: Resource temporarily unavailable",
            )
        ]
        assert open_descriptors() == before


def test_a_machine_that_starts_no_process_for_a_lost_one_reads_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reading(Noisy()) as reading:
        reading.warm()
        monkeypatch.setattr(subprocess, "Popen", refuse_to_start)
        os.kill(reading.ahead.pids[0], signal.SIGKILL)
        reading.wait(lambda: EventKind.PREFETCH_OFF in reading.kinds)
        assert reading.kinds == [EventKind.PREFETCH_OFF]
        check(reading.read())


def test_a_process_inherits_no_socket_and_no_file_of_the_job(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.set_inheritable(True)
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    inode = os.fstat(server.fileno()).st_ino
    with server, secret, Reading(Descriptors(), 1, list).warm() as reading:
        for pid, links in reading.read()[1]:
            assert pid in reading.ahead.pids
            assert f"socket:[{inode}]" not in links
            assert not [link for link in links if link.endswith("secret")]
            assert len([link for link in links if link.startswith("socket:")]) == 1


@pytest.mark.parametrize("mode", [1, 2])
def test_a_process_computes_as_the_training_process_and_loads_no_compiler(mode: int) -> None:
    before = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    try:
        with Reading(Arithmetic(), count=1, collate=list) as reading:
            reading.warm()
            (pid,) = reading.ahead.pids
            rows = [row for _ in range(4) for row in reading.read()[1] if row[0] == pid]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(before[1])
        torch.set_deterministic_debug_mode(before[0])
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert {tuple(row) for row in rows} == {(pid, mode, 2, filled, "torch.float64", "1", False)}


def test_what_cannot_be_pickled_is_an_error_with_advice() -> None:
    for dataset, collate in ((Noisy(), lambda rows: rows), ([threading.Lock()], None)):
        with pytest.raises(ModelError, match=r"gives each process a copy .* cannot be pickled .* leave prefetch out"):
            Reading(dataset, 1, collate)


PARENT = """
import sys, time
from programs.reading import Noisy
from rubato.data.order import BatchPlan
from rubato.data.prefetch import Prefetcher
from rubato.data.source import MapSource

if __name__ == "__main__":
    source = MapSource(Noisy(), None, BatchPlan(40, 16, 4, 5))
    ahead = Prefetcher(source, 2, lambda: iter([(0, 1, 1), (0, 2, 1)]), print)
    while not ahead.read_ahead:
        ahead.read(0, 0); ahead.read(0, 1)
        time.sleep(0.01)
    print(*ahead.pids, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_processes_end_with_the_training_process(tmp_path: Path, number: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        parent.send_signal(number)
        parent.wait()
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- who reads what ---------------------------------------------------------------------------------------------------

keys = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2))


@given(st.lists(keys, unique=True), st.dictionaries(keys, st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_sharing_out(wanted: list[Any], before: dict[Any, int], processes: set[int]) -> None:
    shares = share_out(wanted, before, processes)
    if not processes:
        assert shares == {}
        return
    assert list(shares) == wanted
    assert set(shares.values()) <= processes
    kept = {key for key in wanted if before.get(key) in processes}
    assert all(shares[key] == before[key] for key in kept)
    loads = [sum(one == number for one in shares.values()) for number in processes]
    assert not kept or max(loads) <= max(len(wanted), 1)
    if not kept:
        assert max(loads) - min(loads) <= 1
