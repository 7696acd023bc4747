from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from rubato.cli import demo
from rubato.cli.demo import DemoFailed, Story, TooShort, choose_victim, compare, digest_of
from rubato.cli.exits import ExitCode
from rubato.cli.output import put
from rubato.client import Client, Job, JobUpdate, Worker
from rubato.client.models import Event, MetricPoint, decode
from rubato.home import Home
from tests.unit.cli.fake_service import event, formed, job


@dataclass
class Lines:
    """A progress line that remembers."""

    told: list[str] = field(default_factory=list)

    def show(self, job: Job) -> None:
        pass

    def tell(self, text: str) -> None:
        self.told.append(text)


@dataclass
class FakeClient:
    """A job that is scaled by being asked."""

    final: dict[str, Any]
    asked: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    cancelled: bool = False

    def job(self, job_id: str) -> Job:
        return decode(Job, self.final)

    def scale(self, job_id: str, workers: int) -> None:
        self.asked.append(workers)

    def cancel(self, job_id: str) -> None:
        self.cancelled = True

    def metrics(self, job_id: str, *, names: tuple[str, ...]) -> list[MetricPoint]:
        rows = enumerate([None, *self.step_s], start=1)
        return [MetricPoint(step, step, "2026-01-02T03:04:05Z", {names[0]: seconds}) for step, seconds in rows]


def story_of(*items: dict[str, Any], final: dict[str, Any] | None = None) -> tuple[Story, FakeClient, Lines]:
    def updates() -> Iterator[JobUpdate]:
        for item in items:
            if "position" in item:
                yield JobUpdate(event=decode(Event, item))
            else:
                yield JobUpdate(job=decode(Job, item))

    client, lines = FakeClient(final or job(status="succeeded")), Lines()
    return Story(cast(Client, client), decode(Job, job(step=0)), lines, updates()), client, lines


def test_a_scaling_is_over_when_its_own_generation_has_formed() -> None:
    story, client, lines = story_of(
        formed(1, 0, 3, 1), event(2, "worker.ready"), formed(3, 1, 3, 40), job(step=45), job(step=60)
    )
    story.until_formed(3, 0, "it trained")
    story.scale(3)
    assert client.asked == [3]
    assert len(story.formed) == 2
    story.train_on(50)
    assert story.job.step == 60
    assert lines.told[-1] == "    1 → 3 workers at step 40, paused 41 ms (scale up)"


def test_a_job_that_ends_too_early_fails_the_demo_with_its_reason() -> None:
    failed = job(status="failed", message="It raised.", failure={"rank": 2, "traceback": "boom"})
    story, _, _ = story_of(final=failed)
    with pytest.raises(DemoFailed, match=r"(?s)the job failed before step 10: It raised\..*rank: 2.*boom"):
        story.until(lambda: False, "step 10")
    with pytest.raises(DemoFailed, match="the job failed: It raised"):
        story.finish()


def test_a_change_that_takes_too_long_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.cli.demo.PATIENCE_S", -1.0)
    story, _, _ = story_of(job(message="waits for 2 slots"))
    with pytest.raises(DemoFailed, match=r"for this: it had 3 workers\. The job: waits for 2 slots"):
        story.until(lambda: False, "it had 3 workers")


def test_a_quick_machine_gets_more_epochs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[int] = []

    def run_disturbed(client: Client, home: Home, epochs: int) -> tuple[Job, list[Event]]:
        tried.append(epochs)
        if epochs < 1000:
            raise TooShort("the job succeeded before it had 3 workers")
        return decode(Job, job()), []

    monkeypatch.setattr(demo, "run_disturbed", run_disturbed)
    monkeypatch.setattr(demo, "EPOCHS", 100)
    found = demo.run_disturbed_long_enough(cast(Client, None), Home(Path("/nowhere")))
    assert (tried, found[2]) == ([100, 400, 1600], 1600)
    assert capsys.readouterr().out.count("This machine is quick") == 2
    monkeypatch.setattr(demo, "EPOCHS", 10)
    with pytest.raises(DemoFailed, match="before it had 3"):
        demo.run_disturbed_long_enough(cast(Client, None), Home(Path("/nowhere")))


def test_a_job_that_would_be_over_too_soon_is_cancelled_and_its_successor_fits() -> None:
    story, client, _ = story_of(job(step=21, total_steps=500))
    story.train_on(20)
    story.must_last(60.0)
    client.step_s = [0.5, 0.02, 0.02]
    story.must_last(10.0)
    assert not client.cancelled
    with pytest.raises(TooShort, match="would train for 10 s") as caught:
        story.must_last(60.0)
    assert client.cancelled
    assert caught.value.longer == pytest.approx(7.5)


def test_as_json_the_story_goes_to_stderr_and_what_came_of_it_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RUBATO_HOME", str(tmp_path))

    def play(home: Home) -> dict[str, Any]:
        put("the story")
        return {"digest": "a"}

    monkeypatch.setattr(demo, "play", play)
    assert demo.run_demo(as_json=True) == ExitCode.OK
    out, err = capsys.readouterr()
    assert json.loads(out)["digest"] == "a"
    assert "the story" in err
    assert demo.run_demo() == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[0] == "the story"


def test_only_success_counts_as_too_early() -> None:
    for status, kind in (("succeeded", TooShort), ("cancelled", DemoFailed)):
        story, _, _ = story_of(final=job(status=status))
        with pytest.raises(DemoFailed) as caught:
            story.until(lambda: False, "step 10")
        assert type(caught.value) is kind


def test_only_a_training_worker_is_killed() -> None:
    workers = [
        Worker("w1", rank=0, pid=10, state="active"),
        Worker("w2", rank=2, pid=12, state="draining"),
        Worker("w3", rank=1, pid=11, state="active"),
        Worker("w4", rank=None, pid=13, state="warming"),
    ]
    assert choose_victim(workers).worker_id == "w3"
    with pytest.raises(DemoFailed, match="no worker trains"):
        choose_victim(workers[3:])


def test_digests_must_exist_and_be_equal() -> None:
    one = decode(Job, job(result={"step": 1, "digest": "a"}))
    other = decode(Job, job(result={"step": 1, "digest": "b"}))
    compare(one, one)
    with pytest.raises(DemoFailed, match="digests differ"):
        compare(one, other)
    with pytest.raises(DemoFailed, match="without a digest"):
        digest_of(decode(Job, job()))
