from __future__ import annotations

import pytest

from rubato.cli import follow
from rubato.client import Job, ServiceUnreachable
from rubato.client.models import Event, decode
from tests.unit.cli.fake_service import event, formed, job


def test_plain_progress_says_each_status_once_and_then_little(capsys: pytest.CaptureFixture[str]) -> None:
    line = follow.PlainProgress()
    for step in range(3):
        line.show(decode(Job, job(step=step)))
    line.show(decode(Job, job(status="pausing", message="a person asked", step=3)))
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "running: step 0/500, 2 workers, loss 0.25, 512 samples/s",
        "pausing (a person asked): step 3/500, 2 workers, loss 0.25, 512 samples/s",
    ]


def test_plain_progress_says_nothing_twice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.cli.follow.PLAIN_EVERY_S", 0.0)
    line = follow.PlainProgress()
    for step in (1, 1, 1, 2, 2):
        line.show(decode(Job, job(step=step)))
    told = capsys.readouterr().err.splitlines()
    assert [one.split(",")[0] for one in told] == ["running: step 1/500", "running: step 2/500"]


def test_the_live_bar_moves() -> None:
    line = follow.LiveProgress()
    line.show(decode(Job, job(step=42, phase="scaling", workers=1, joining=1)))
    (task,) = line.bar.tasks
    assert (task.completed, task.total, task.description) == (42, 500, "scaling")
    assert task.fields["facts"].startswith("1/2 workers")


def test_progress_without_any_number_yet() -> None:
    assert follow.describe_progress(
        decode(Job, job(status="queued", metrics={}, step=0, total_steps=None, workers=0))
    ) == ("queued: step 0, 0/2 workers")
    failed = decode(Job, job(status="failed", metrics={}, step=0, total_steps=None, workers=0))
    assert follow.describe_progress(failed) == "failed: step 0"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (formed(1, 2, 4, 1204), "2 → 4 workers at step 1204, paused 41 ms (scale up)"),
        (formed(1, 0, 1, 1), "1 worker at step 1, paused 41 ms (scale up)"),
        (event(1, "worker.lost", "w2 was lost", step=7), "w2 was lost (step 7)"),
        (event(1, "worker.ready", "Hello."), "Hello."),
    ],
)
def test_events_in_a_line(item: dict[str, object], text: str) -> None:
    assert follow.describe_event(decode(Event, item)) == text


def test_a_gap_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    tell = follow.gap_listener(follow.PlainProgress())
    for _ in range(5):
        tell(ServiceUnreachable("gone"))
    assert capsys.readouterr().err.count("does not answer") == 1


@pytest.mark.parametrize(
    ("changes", "is_so"),
    [
        ({"status": "paused"}, True),
        ({"status": "pausing"}, True),
        ({"status": "pausing", "reason": "preempted"}, False),
        ({"status": "pausing", "id": "run_6a0000000000aa"}, False),
        ({"status": "queued", "reason": "preempted"}, False),
    ],
)
def test_a_job_that_makes_way_is_not_laid_aside(changes: dict[str, str], is_so: bool) -> None:
    assert follow.is_laid_aside(decode(Job, job(**changes))) == is_so
