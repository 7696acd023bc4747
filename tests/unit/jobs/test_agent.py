from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import agent as module
from jobs.agent import Agent, wait_for_token
from jobs.service_link import Unreachable
from rubato.errors import RubatoError
from rubato.home import Home
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
    agent = Agent(service, "default", "http://service", "a")
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
        Agent(service, "default", "http://wrong", "a").run()
    outage = "agent: no word from the service at http://wrong (HTTP 502); asking until there is one"
    assert capsys.readouterr().err.splitlines() == [outage, "agent: the service answers again", outage]


def test_the_token_of_a_service_that_only_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path)
    with pytest.raises(RubatoError, match="cannot read the cluster token"):
        wait_for_token(home, {}, 0.0)
    monkeypatch.setattr(module.time, "sleep", lambda _: (tmp_path / "cluster-token").write_text("secret\n"))
    capsys.readouterr()
    assert wait_for_token(home, {}) == "secret"
    assert "waiting up to 30 s" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    with pytest.raises(RubatoError, match="Is a directory"):
        wait_for_token(home, {"RUBATO_CLUSTER_TOKEN_FILE": str(tmp_path / "folder")})


def test_an_agent_has_the_name_of_its_place_or_one_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who follows at the same place acts at once; for the service they are one."""
    (tmp_path / "cluster-token").write_text("secret")
    monkeypatch.setenv("RUBATO_HOME", str(tmp_path))
    monkeypatch.setattr(module.ray, "init", lambda **_: None)
    names: list[str] = []
    monkeypatch.setattr(module.Agent, "run", lambda self: names.append(self._agent_id))
    told = ["--url", "http://127.0.0.1:1", "--ray-address", "127.0.0.1:2"]
    for more in (["--agent-id", "here"], [], []):
        assert module.main([*told, *more]) == 0
    assert names[0] == "here"
    assert len(set(names)) == 3
