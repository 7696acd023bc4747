from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

from jobs import controller as module
from jobs.controller import JobController, Leader, acquire, has_ended
from jobs.service_link import Unreachable
from rubato.cli.keeper.process_table import identify, pid_namespace
from rubato.errors import UserError
from rubato.wire.cluster import Acquired, Desired, ProcessIdentity, Report, ReportReply
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json
from tests.other_container import process_elsewhere

PROCESS = ProcessIdentity("node", "boot", 12, 345)


class Link:
    """Takes reports."""

    taken: list[Report]

    def __init__(self, url: str, token: str) -> None:
        self.taken = []
        links.append(self)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def report(self, job_id: str, report: Report) -> ReportReply:
        self.taken.append(report)
        return ReportReply(report.batch, "now")


links: list[Link] = []


def acquired(**spec: Any) -> Acquired:
    good = spec_to_json(JobSpec(name="digits", recipe="image-classifier"))
    return Acquired(1, "token", "digits", {**good, **spec}, "/storage", Desired(1, "run", 1), resume_step=7)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("storage s3:// needs a package"), "begin: storage s3:// needs a package"),
        (TypeError("missing 'host'"), "begin: TypeError: missing 'host'"),
        (OSError("no libhdfs\n" + "dlopen failed\n" * 100), "begin: OSError: no libhdfs"),
        (RuntimeError(), "begin: RuntimeError: "),
    ],
)
def test_an_attempt_that_cannot_begin_fails_the_job(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    links.clear()
    monkeypatch.setattr(module, "ServiceLink", Link)
    monkeypatch.setattr(module, "acquire", lambda *_: acquired())
    monkeypatch.setattr(module, "open_folder", fail)
    one = object.__new__(JobController)
    one._job_id, one._ticket, one._url, one._process = "job_1", "ticket", "http://service", PROCESS
    one._lead()
    outcome = links[0].taken[-1].outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.reason) == ("failed", "start_failed")
    assert outcome.failure.message.endswith(told)
    assert links[0].taken[-1].observed.step == 7


def test_what_a_newer_service_says_of_a_job_is_passed_over() -> None:
    spec = acquired(newer_field=1).spec
    assert parse_spec(spec, strict=False) == parse_spec({name: spec[name] for name in spec if name != "newer_field"})
    leader = Leader("job_1", dataclasses.replace(acquired(), spec=spec), "http://service", Link("", ""), Link("", ""))  # type: ignore[arg-type]
    leader._archive.close()
    leader._fleet.close()


def test_wishes_that_are_heard_no_more_end_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Astray(Link):
        def desired(self, *_: Any) -> None:
            raise KeyError("unforeseen")

    has_crashed = threading.Event()
    monkeypatch.setattr(module, "crash", has_crashed.set)
    leader = Leader("job_1", acquired(), "http://service", Link("", ""), Astray("", ""))  # type: ignore[arg-type]
    leader._follow_wishes()
    assert has_crashed.is_set()
    leader._archive.close()
    leader._fleet.close()


def test_a_service_that_cannot_be_asked_for_an_attempt_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Away(Link):
        def acquire(self, *_: Any) -> Acquired:
            if len(asked) < 3:
                asked.append(self)
                raise Unreachable("HTTP 502")
            return acquired()

    asked: list[Link] = []
    monkeypatch.setattr(module, "ServiceLink", Away)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    assert acquire("http://wrong", "ticket", "job_1", PROCESS) == acquired()
    assert capsys.readouterr().err.count("no word from the service at http://wrong (HTTP 502)") == 1


def test_a_predecessor_in_another_container_of_the_host_is_not_known_to_be_gone() -> None:
    with process_elsewhere() as (namespace, process):
        assert namespace.partition("/")[0] == pid_namespace().partition("/")[0], "of the same boot"
        assert identify(process.pid) != process, "which tells nothing: pids here are others'"
        assert not has_ended(ProcessIdentity("node", namespace, process.pid, process.start_time))


def test_a_predecessor_is_gone_that_is_not_here_any_more() -> None:
    own = identify(os.getpid())
    assert own is not None
    here = pid_namespace()
    assert not has_ended(ProcessIdentity("node", here, own.pid, own.start_time))
    assert has_ended(ProcessIdentity("node", here, own.pid, own.start_time - 1))
    boot = here.partition("/")[0]
    for told in ("", boot, "another boot/1"):  # the second as told by a release before
        assert not has_ended(ProcessIdentity("node", told, own.pid, own.start_time - 1)), told
