"""The order of events of a run, against a peer that trains one step whenever somebody looks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as main
from benchmarks import story
from benchmarks.figures import FIGURES, of_story
from benchmarks.peers.peer import Kind, PeerFailed
from benchmarks.programs.workload import NUM_SAMPLES, Workload
from benchmarks.report import merge
from benchmarks.timeline import Row

STEPS, BATCH = 128, 256


class FakePeer:
    """Commits a step a second whenever its rows are read; a change of size costs three seconds more."""

    def __init__(self, folder: Path, job: Workload) -> None:
        self._folder, self._job = folder, job
        self._rows: list[Row] = []
        self._workers = self._generation = 0
        self._clock = 0.0
        self.done: list[str] = []

    def prepare(self, workers: int) -> None:
        self.done.append(f"prepare {workers}")

    def start(self, workers: int, low: int, high: int) -> None:
        self.done.append(f"start {workers} of {low}..{high}")
        self._clock = story.time.time()
        self._change(workers)

    def scale(self, workers: int) -> None:
        self.done.append(f"scale {workers}")
        self._change(workers)

    def kill(self) -> None:
        self.done.append("kill")
        self._change(3)

    def _change(self, workers: int) -> None:
        self._workers, self._generation = workers, self._generation + 1
        self._clock = max(self._clock, story.time.time()) + 3.0

    def rows(self) -> list[Row]:
        if self._workers and len(self._rows) < self._job.steps:
            self._clock += 1.0
            self._rows.append(Row(len(self._rows) + 1, self._clock, self._workers, str(self._generation)))
            story.time.now = self._clock
        return list(self._rows)

    def redone(self) -> float:
        return 0.5 if "kill" in self.done else 0.0

    def is_over(self) -> bool:
        return len(self._rows) == self._job.steps

    def results(self) -> list[dict[str, Any]]:
        uses = self._job.steps * self._job.batch // NUM_SAMPLES
        return [{"digest": "d", "counts": [uses] * NUM_SAMPLES}] if self.is_over() else []

    def output(self) -> str:
        return "OSError: told by the peer"

    def close(self) -> None:
        self.done.append("close")


class Stuck(FakePeer):
    """Never gets its workers."""

    def scale(self, workers: int) -> None:
        pass


class Clock:
    """The peers' time; it passes as they train."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(story, "time", made)
    return made


def job(folder: Path, steps: int = STEPS) -> Workload:
    return Workload(str(folder), steps=steps, batch=BATCH)


def test_a_story_goes_through_its_events_in_order_and_every_figure_is_read_from_it(tmp_path: Path) -> None:
    peer, released = FakePeer(tmp_path, job(tmp_path)), []
    outcome = story.eventful(peer, lambda _: None, lambda: released.append(len(peer.done)))
    assert peer.done == ["prepare 1", "start 1 of 1..4", "scale 2", "scale 4", "scale 3", "scale 4", "kill"]
    assert released == [7]
    found = of_story(outcome, STEPS, BATCH, "d")
    assert set(found) - {"up_3_4"} == {figure.key for figure in FIGURES if figure.run == "story"}
    assert found["kill"] == pytest.approx(3.0)
    assert found["up_2_4"] == pytest.approx(3.0)
    assert (found["redone"], found["lost"], found["equal"]) == (0.5, 0.0, 1.0)
    assert of_story(outcome, STEPS, BATCH, "another")["equal"] == 0.0


def test_events_are_apart_by_as_many_steps_as_a_figure_needs(tmp_path: Path) -> None:
    outcome = story.eventful(FakePeer(tmp_path, job(tmp_path)), lambda _: None, lambda: None)
    generations = [row.generation for row in outcome.rows]
    assert all(generations.count(one) > story.SETTLE_STEPS for one in set(generations))


def test_a_run_that_ends_too_early_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"waiting for 4 workers; more --steps"):
        story.eventful(FakePeer(tmp_path, job(tmp_path, 30)), lambda _: None, lambda: None)


def test_nothing_is_waited_for_in_vain_for_ever(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="no 2 workers within"):
        story.eventful(Stuck(tmp_path, job(tmp_path, 10**6)), lambda _: None, lambda: None)


def test_a_peer_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakePeer] = []

    def make(folder: Path, job: Workload) -> FakePeer:
        made.append(FakePeer(folder, job))
        return made[-1]

    kinds = {
        "stuck": Kind(Stuck, "Stuck", ()),
        "good": Kind(make, "Good", ()),
        "fixed": Kind(make, "F", (), is_elastic=False),
    }
    monkeypatch.setattr(main, "PEERS", kinds)
    flags = argparse.Namespace(
        peers=list(kinds), figures=[figure.key for figure in FIGURES], rounds=1, steps=STEPS, steady_steps=48,
        width=8, batch=BATCH, hold=0.0, device_seconds=0.0, json=tmp_path / "figures.json",
    )  # fmt: skip
    bench = main.Bench(flags, tmp_path, load=0.0)
    bench.run()
    assert set(bench.measured["stuck"].failures) == {"story"}
    at_once = {"warming"}  # its workers have nothing to warm up
    assert set(bench.measured["good"].samples) == {figure.key for figure in FIGURES} - at_once
    assert set(bench.measured["fixed"].samples) == {"start", "steady_2", "steady_4"}
    assert all(peer.done[-1] == "close" for peer in made)
    kept, context = merge([json.loads((tmp_path / "figures.json").read_text())])
    assert kept == bench.measured
    assert context.rounds == 1
