from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from jobs import reporter as module
from jobs.reporter import MAX_ANSWERS, MAX_LOG_LINES, MAX_SPOOLED_LINES, Reporter
from jobs.service_link import Fenced, Refused, Unreachable, encode
from rubato.engine.coordinator import Emit, RowsStored
from rubato.wire.cluster import ActionAnswer, Failure, LogLine, MetricRow, Observed, Outcome, Report, ReportReply

OBSERVED = Observed("running", "training", 1, 1, 0, 5, 10, 0, 0)
DONE = Outcome("cancelled")


class Service:
    """Answers as it is told; keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[Report] = []
        self.answers: list[Exception] = []
        self.tried: list[Report] = []

    def report(self, job_id: str, report: Report) -> ReportReply:
        self.tried.append(report)
        if self.answers:
            raise self.answers.pop(0)
        self.taken.append(report)
        return ReportReply(report.batch, "now")


class Told:
    """What the reporter says to its host."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.fenced = threading.Event()
        self.crashed = threading.Event()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_INTERVAL_S", "MAX_INTERVAL_S", "RETRY_FIRST_S", "RETRY_MAX_S"):
        monkeypatch.setattr(module, name, 0.001)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reporter(service: Service, told: Told) -> Iterator[Reporter]:
    one = Reporter(service, "job_1", 3, told.posted.append, told.fenced.set, told.crashed.set)
    yield one
    one.close()


def row(step: int) -> MetricRow:
    return MetricRow(step, "now", 1, 1, {"loss": 1.0})


def line(text: str = "hello") -> LogLine:
    return LogLine("w1.1", 0, "now", "stdout", text)


def finish(reporter: Reporter, fill: Callable[[], None] = lambda: None) -> None:
    reporter.observe(OBSERVED, ())
    fill()
    reporter.end(DONE)
    reporter.start()
    reporter.wait_acknowledged()


def test_everything_arrives_in_order_and_the_outcome_last(reporter: Reporter, service: Service, told: Told) -> None:
    def fill() -> None:
        for step in range(1, 2501):
            reporter.rows((row(step),))
            reporter.emit(Emit("worker.ready", f"step {step}", step))
            reporter.log(line(str(step)))

    finish(reporter, fill)
    assert [report.batch for report in service.taken] == list(range(1, len(service.taken) + 1))
    assert [one.step for report in service.taken for one in report.metrics] == list(range(1, 2501))
    assert [one.seq for report in service.taken for one in report.events] == list(range(1, 2501))
    assert [one.line for report in service.taken for one in report.logs] == [str(step) for step in range(1, 2501)]
    assert [report.outcome for report in service.taken] == [None] * (len(service.taken) - 1) + [DONE]
    assert {report.attempt for report in service.taken} == {3}
    assert max(one.count for one in told.posted) == 2500
    assert all(isinstance(one, RowsStored) for one in told.posted)


def test_a_batch_is_sent_again_unchanged_until_it_is_taken(reporter: Reporter, service: Service, told: Told) -> None:
    service.answers = [Unreachable("down")] * 4
    finish(reporter, lambda: reporter.rows((row(1),)))
    assert service.tried[:4] == [service.tried[4]] * 4
    assert told.posted == [RowsStored(1)]


def test_a_fenced_attempt_stops_and_sends_nothing_more(reporter: Reporter, service: Service, told: Told) -> None:
    service.answers = [Fenced("superseded")]
    finish(reporter)
    assert told.fenced.is_set()
    assert service.taken == []


def test_a_batch_that_is_never_taken_is_given_up_loudly_and_the_rest_goes_on(
    reporter: Reporter, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers = [Refused("too large", 413)]
    finish(reporter, lambda: reporter.log(line("monster")))
    assert "too large" in capsys.readouterr().err
    assert service.taken[0].logs == ()
    assert service.taken[-1].outcome == DONE
    kinds = [event.kind for report in service.taken for event in report.events]
    assert kinds == ["report.refused"]
    assert [report.batch for report in service.taken] == [1, 2]


def test_rows_that_are_refused_are_waited_for_no_longer(reporter: Reporter, service: Service, told: Told) -> None:
    service.answers = [Refused("no number", 422)]
    finish(reporter, lambda: reporter.rows((row(1), row(2))))
    assert told.posted == [RowsStored(2)], "the end of the job waits for this"
    assert service.taken[0].metrics == ()


def test_a_batch_of_logs_is_bounded(reporter: Reporter, service: Service) -> None:
    def fill() -> None:
        for _ in range(300):
            reporter.log(line("x" * 16_000))
        for _ in range(MAX_LOG_LINES + 1):
            reporter.log(line(""))

    finish(reporter, fill)
    sizes = [sum(len(one.line) for one in report.logs) for report in service.taken]
    assert max(sizes) <= module.MAX_PART_BYTES
    assert sum(sizes) == 300 * 16_000
    assert max(len(report.logs) for report in service.taken) <= MAX_LOG_LINES


LIMIT_BYTES = 8 * 1024 * 1024


def test_no_batch_is_larger_than_the_service_takes(reporter: Reporter, service: Service) -> None:
    """Whatever the characters of a line, and however many values a step has."""
    values = {f"a-rather-long-name-of-a-metric-{number}": 0.123456789012345 for number in range(300)}

    def fill() -> None:
        for step in range(1, 1001):
            reporter.rows((MetricRow(step, "now", 1, 1, values),))
            reporter.emit(Emit("worker.ready", "\x1b" * 4000, step))
        for _ in range(500):
            reporter.log(line("\x00" * 16_000))
            reporter.log(line("語" * 16_000))
            reporter.log(line("\ud800"))

    finish(reporter, fill)
    assert max(len(encode(report)) for report in service.taken) < LIMIT_BYTES
    assert sum(len(report.metrics) for report in service.taken) == 1000
    assert sum(len(report.logs) for report in service.taken) == 1500


def test_a_batch_that_is_too_large_is_sent_in_halves(reporter: Reporter, service: Service, told: Told) -> None:
    class Small(Service):
        def report(self, job_id: str, report: Report) -> ReportReply:
            if any(one.line == "monster" for one in report.logs) or len(report.metrics) > 3:
                raise Refused("too large", 413)
            return super().report(job_id, report)

    small = Small()
    reporter._link = small

    def fill() -> None:
        reporter.rows(tuple(row(step) for step in range(1, 21)))
        for text in ("a", "monster", "b"):
            reporter.log(line(text))

    finish(reporter, fill)
    assert [one.step for report in small.taken for one in report.metrics] == list(range(1, 21))
    assert [one.line for report in small.taken for one in report.logs] == ["a", "b"]
    assert [report.batch for report in small.taken] == list(range(1, len(small.taken) + 1))
    assert told.posted[-1] == RowsStored(20)
    assert small.taken[-1].outcome == DONE


def test_a_refusal_of_who_asks_costs_nothing(reporter: Reporter, service: Service) -> None:
    service.answers = [Refused("who are you", 401), Refused("which host", 421)]
    finish(reporter, lambda: reporter.rows((row(1),)))
    assert [len(report.metrics) for report in service.taken] == [1]
    assert service.taken[0].events == ()


def test_the_end_comes_through_whatever_the_last_output_was(reporter: Reporter, service: Service) -> None:
    output = tuple(f"{number}" + "\x00" * 16_000 for number in range(100))
    failure = Failure("user", "exception", "it failed", traceback="long", last_output=output)
    service.answers = [Refused("no", 422)]
    reporter.observe(OBSERVED, ())
    reporter.end(Outcome("failed", failure=failure))
    reporter.start()
    reporter.wait_acknowledged()
    first, last = service.tried[0].outcome, service.taken[-1].outcome
    assert first is not None
    assert first.failure is not None
    assert first.failure.last_output == output[-2:]
    assert last == Outcome("failed", failure=Failure("user", "exception", "it failed"))
    assert service.taken[-1].events == ()


def test_lines_that_do_not_fit_while_the_service_is_away_are_counted(reporter: Reporter, service: Service) -> None:
    def fill() -> None:
        for number in range(MAX_SPOOLED_LINES + 7):
            reporter.log(line(str(number)))

    finish(reporter, fill)
    lines = [one for report in service.taken for one in report.logs]
    assert (lines[0].stream, lines[0].line.split()[0]) == ("system", "7")
    assert lines[1].line == "7"
    assert lines[-1].line == str(MAX_SPOOLED_LINES + 6)


def test_rows_that_do_not_fit_while_the_service_is_away_are_thinned_and_counted(
    reporter: Reporter, service: Service, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SPOOLED_ROWS", 100)

    def fill() -> None:
        for step in range(1, 252):
            reporter.rows((row(step),))

    finish(reporter, fill)
    steps = [one.step for report in service.taken for one in report.metrics]
    assert len(steps) <= 101
    assert steps[-1] == 251
    gaps = {after - before for before, after in itertools.pairwise(steps[:-1])}
    assert gaps == {4}
    (notice,) = [one.line for report in service.taken for one in report.logs]
    assert notice == f"{251 - len(steps)} metric rows, evenly, were dropped while the service was away"
    assert told.posted[-1] == RowsStored(251), "nobody waits for those that were dropped"


def test_a_change_is_reported_soon_and_silence_now_and_then(
    reporter: Reporter, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter.observe(OBSERVED, ())
    reporter.start()
    wait(lambda: len(service.taken) >= 3)  # at least one in MAX_INTERVAL_S
    reporter.observe(replace(OBSERVED, step=6), ())
    wait(lambda: service.taken[-1].observed.step == 6)


def wait(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never came to pass")


def test_an_end_of_the_thread_is_no_acknowledgement(
    reporter: Reporter, service: Service, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers = [ZeroDivisionError("nobody foresaw it")]
    finish(reporter)
    assert told.crashed.is_set()
    assert "nobody foresaw it" in capsys.readouterr().err


def test_answers_to_actions_are_sent_once_and_before_the_end(service: Service, reporter: Reporter) -> None:
    answers = [ActionAnswer(number, "done", "it left", "x" * 1000) for number in range(1, MAX_ANSWERS + 4)]
    for answer in answers:
        reporter.answer(answer)
    reporter.observe(OBSERVED, ())
    service.answers = [Unreachable("away"), Unreachable("away")]
    reporter.end(DONE)
    reporter.start()
    reporter.wait_acknowledged()
    assert [answer for report in service.taken for answer in report.answers] == answers
    assert max(len(report.answers) for report in service.taken) == MAX_ANSWERS
    assert [report.outcome for report in service.taken] == [None, DONE]
