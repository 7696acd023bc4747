from __future__ import annotations

from typing import Any

import pytest

from jobs import agent as module
from jobs.agent import Agent
from jobs.service_link import Unreachable
from rubato.wire.cluster import ControllerSeen, ProcessIdentity, SyncReply, SyncRequest

PROCESS = ProcessIdentity("node", "boot", 12, 345)


class Service:
    """Answers as it is told, then ends the agent."""

    def __init__(self, *answers: Exception | SyncReply) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[ControllerSeen, ...]] = []

    def sync(self, cluster_id: str, request: SyncRequest) -> SyncReply:
        self.heard.append(request.controllers)
        if not self.answers:
            raise RuntimeError("that is all")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_end_of_a_controller_is_told_until_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "observe_actors", list)
    monkeypatch.setattr(module, "observe_nodes", tuple)
    monkeypatch.setattr(module, "has_ended", lambda _: True)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    service: Any = Service(Unreachable("away"), SyncReply(1, acting=False), SyncReply(2))
    agent = Agent(service, "default", "http://service")
    agent._known["job_1"] = (PROCESS, 3)
    with pytest.raises(RuntimeError, match="that is all"):
        agent.run()
    assert service.heard == [(ControllerSeen("job_1", "gone", 3),)] * 3 + [()]


def test_each_outage_of_the_service_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "observe_actors", list)
    monkeypatch.setattr(module, "observe_nodes", tuple)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    away, there = [Unreachable("HTTP 502")] * 3, SyncReply(1, acting=False)
    service: Any = Service(there, *away, there, *away)
    with pytest.raises(RuntimeError, match="that is all"):
        Agent(service, "default", "http://wrong").run()
    outage = "agent: no word from the service at http://wrong (HTTP 502); asking until there is one"
    assert capsys.readouterr().err.splitlines() == [outage, "agent: the service answers again", outage]
