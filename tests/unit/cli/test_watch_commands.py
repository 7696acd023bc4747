from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rubato.cli import live
from rubato.cli.watch_commands import BARS, WIDTH, curve, metric_table
from rubato.errors import ServiceUnreachable
from rubato.wire.events import EventKind
from tests.unit.cli.fake_service import FakeService, Reply, Rubato, event, formed, job, log_with, stream

LOSS = {"x": [1, 2, 3, 4], "y": [2.0, 1.0, 0.5, 0.25]}


@pytest.fixture
def charts(service: FakeService) -> FakeService:
    service.on("GET", "/jobs/job_1", job())
    series = {"samples_per_second": {"x": [1], "y": [512.0]}, "accuracy": {"x": [2], "y": [0.5]}, "loss": LOSS}
    service.on("GET", "/jobs/job_1/metrics/chart", {"series": series})
    return service


@pytest.fixture
def happened(service: FakeService) -> FakeService:
    service.on("GET", "/jobs/digits", job())
    submitted = event(1, "job.submitted", "Submitted by ada.", time="2026-01-02T03:04:05.678Z")
    lost = event(3, "worker.lost", "w1.2 was killed by SIGKILL.", step=12)
    stored = [submitted, formed(2, 1, 3, 7), lost]
    service.on("GET", "/jobs/job_1/events", log_with(stored, stream(lost, job(status="succeeded"))))
    return service


def test_events_are_a_line_each_with_local_time_kind_and_step(happened: FakeService, rubato: Rubato, zone: str) -> None:
    lines = rubato("events", "digits").out.splitlines()
    moment = {"America/New_York": ["2026-01-01", "22:04:05"], "Europe/Berlin": ["2026-01-02", "04:04:05"]}[zone]
    assert lines[0].split(maxsplit=3) == [*moment, "job.submitted", "Submitted by ada."]
    assert lines[1].endswith("1 → 3 workers at step 7, paused 41 ms (scale up)")
    assert lines[2].split(maxsplit=5)[2:] == ["worker.lost", "step", "12", "w1.2 was killed by SIGKILL."]


def test_the_longest_kind_of_event_shifts_no_column(happened: FakeService, rubato: Rubato) -> None:
    longest = max(EventKind, key=len)
    stored = [event(1, longest, "It happened.", step=7), event(2, "worker.lost", "It happened.", step=12)]
    happened.on("GET", "/jobs/job_1/events", log_with(stored, ""))
    first, second = rubato("events", "digits").out.splitlines()
    assert first.index("step") == second.index("step")
    assert first.index("It happened") == second.index("It happened")


def test_a_time_that_was_shown_is_read_as_the_same_one(happened: FakeService, rubato: Rubato, zone: str) -> None:
    shown = rubato("events", "digits").out[:19]
    told = rubato("events", "digits", "--json").out.splitlines()[0]
    assert '"2026-01-02T03:04:05.678Z"' in told, "programs are told as the service does"
    happened.on("GET", "/jobs/digits/logs", {"items": []})
    assert rubato("logs", "digits", "--since", shown).code == 0
    asked = datetime.fromisoformat(happened.requests[-1].query["since"])
    assert asked == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_events_of_a_kind_or_of_all_that_begin_so(happened: FakeService, rubato: Rubato) -> None:
    assert "worker.lost" in rubato("events", "digits", "--kind", "worker.lost").out
    several = rubato("events", "digits", "--kind", "worker", "--kind", "job.submitted").out.splitlines()
    assert [line.split()[-1] for line in several] == ["ada.", "SIGKILL."]
    none = rubato("events", "digits", "--kind", "checkpoint", "--kind", "outcome")
    assert (none.code, none.out, "No event of kind checkpoint, outcome" in none.err) == (0, "", True)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("worker.lots", "did you mean 'worker.lost'?"),
        ("work", "did you mean 'worker'?"),
        ("zebra", "there are: arithmetic.changed"),
    ],
)
def test_a_kind_that_no_event_has_is_refused(happened: FakeService, rubato: Rubato, kind: str, advice: str) -> None:
    done = rubato("events", "digits", "--kind", kind)
    assert (done.code, happened.requests) == (2, [])
    assert f"{kind!r} is no kind of event; {advice}" in " ".join(done.err.split())


def test_events_are_followed_to_the_end_of_the_job(happened: FakeService, rubato: Rubato) -> None:
    done = rubato("events", "digits", "-f", "--json")
    assert (done.code, done.json["kind"]) == (0, "worker.lost")


def test_metrics_are_a_line_each_the_loss_first(charts: FakeService, rubato: Rubato) -> None:
    lines = rubato("metrics", "job_1").out.splitlines()
    assert lines[0].split() == ["digits", "running", "step", "120/500", "workers", "2"]
    assert lines[1].split() == ["METRIC", "CURVE", "LAST", "LEAST", "GREATEST"]
    assert lines[2].split() == ["loss", "█▄▂▁", "0.25", "0.25", "2"]
    assert [line.split()[0] for line in lines[3:]] == ["accuracy", "samples_per_second"]


def test_metrics_of_a_name_that_is_not_there_yet(charts: FakeService, rubato: Rubato) -> None:
    charts.on("GET", "/jobs/job_1/metrics/chart", {"series": {"loss": {"x": [1, 2], "y": [None, None]}}})
    done = rubato("metrics", "job_1", "loss", "f1")
    assert charts.asked("GET", "/jobs/job_1/metrics/chart")[0].query["names"] == "loss,f1"
    assert "digits has logged no f1 yet; it has loss, samples_per_second." in done.err
    assert "no los yet; did you mean 'loss'?" in rubato("metrics", "job_1", "los").err
    assert done.out.splitlines()[2].split()[:3] == ["loss", "not", "finite"]


def test_a_curve_of_what_was_thinned_out_is_of_means_not_of_extremes(charts: FakeService, rubato: Rubato) -> None:
    """Each stretch has one slow step, which is its least value; only the third one is slower as a whole."""
    means = [996, 996, 996, 996, 600, 600, 1000]
    line = {"x": list(range(7)), "y": [200, 1000] * 3 + [1000], "means": means, "weights": [0.5] * 6 + [1.0]}
    charts.on("GET", "/jobs/job_1/metrics/chart", {"series": {"samples_per_second": line}})
    shown = rubato("metrics", "job_1").out.splitlines()[2].split()
    assert shown == ["samples_per_second", "████▁▁█", "512", "200", "1000"], "the last value is the job's newest"


def test_a_mean_of_several_points_goes_by_their_weights() -> None:
    assert curve([0, 1, 0, 0], 2, [1, 3, 1, 1]) == curve([0.75, 0.0])
    assert curve([8, 4, 8, 2, 8, 0], 3, [1e-9, 1, 1e-9, 1, 1e-9, 1]) == curve([4, 2, 0])


def test_metrics_as_json_are_the_series(charts: FakeService, rubato: Rubato) -> None:
    assert rubato("metrics", "job_1", "--json").json["loss"] == LOSS


def test_watching_metrics_ends_with_the_job(
    charts: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    states = iter([job(), job(), job(), job(status="succeeded")])  # the first tells the id
    charts.on("GET", "/jobs/job_1", lambda _: Reply(next(states)))
    assert rubato("metrics", "job_1", "-w").out.count("METRIC") == 3


def test_a_watched_screen_outlives_a_service_that_is_away(
    charts: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal it is drawn in place, keeps what was last known, and leaves the last picture behind."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=20, color_system=None)
    monkeypatch.setattr(live, "stdout_console", lambda: console)
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    pictures = iter([live.Picture(["first"]), ServiceUnreachable("gone"), live.Picture(["last"], is_last=True)])

    def take() -> live.Picture:
        found = next(pictures)
        if isinstance(found, Exception):
            raise found
        return found

    live.show(take, watch=True)
    second_screen, left = screen.getvalue().split("\x1b[?1049l")
    assert second_screen.count("first") == 2
    assert second_screen.count("The service does not answer; this is how it was at") == 1
    assert left.strip().startswith("last")


def test_on_a_narrow_terminal_least_and_greatest_are_left_out() -> None:
    shown = io.StringIO()
    Console(file=shown, width=60).print(metric_table({"loss": LOSS}, columns=60))
    assert shown.getvalue().splitlines()[0].split() == ["METRIC", "CURVE", "LAST"]


def test_top_shows_nodes_jobs_and_who_waits(service: FakeService, rubato: Rubato) -> None:
    node = {
        "node_id": "0123456789abcdef", "hostname": "host-a", "address": "10.0.0.1", "state": "ready", "cpu": 8.0,
        "cpu_used": 3.0, "gpu": 4, "gpu_used": 1, "workers_left": 2, "jobs": [{"name": "digits", "workers": 2}],
        "memory": 2**36, "accelerators": ["H100"],
    }  # fmt: skip
    cluster = {"id": "default", "status": "up", "slots_total": 8, "slots_used": 2, "nodes": []}
    service.on("GET", "/cluster", {"clusters": [cluster]})
    service.on("GET", "/clusters/default/nodes", {"items": [node]})
    service.on("GET", "/jobs", {"items": [job()], "next_cursor": None})
    waits = {"job_id": "job_2", "name": "big", "status": "queued", "because": "needs 9 slots, free 6", "position": 1}
    service.on("GET", "/queue", {"items": [waits], "running": [], "next_cursor": None})
    done = rubato("top")
    assert not done.err
    out = done.out
    assert "cluster default: up, 2 of 8 slots in use" in out
    assert "host-a" in out
    assert "3/8" in out
    assert "1/4 H100" in out
    assert "64 GiB" in out
    assert "digits" in out
    assert "big waits: needs 9 slots, free 6" in out
    found = rubato("top", "--json").json
    assert [one["id"] for one in found["clusters"]] == ["default"]


@given(st.lists(st.floats(-1e6, 1e6), max_size=300))
def test_a_curve_fits_and_shows_both_ends(values: list[float]) -> None:
    drawn = curve(values)
    assert len(drawn) == min(WIDTH, len(values))
    assert set(drawn) <= set(BARS)
    if 0 < len(values) <= WIDTH and max(values) - min(values) > 1e-3:
        assert drawn[values.index(min(values))] == BARS[0]
        assert drawn[values.index(max(values))] == BARS[-1]
