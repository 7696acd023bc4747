"""What commands find of a `rubato run` that is over; no service is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rubato.launch.control import RUN_FILE
from rubato.launch.records import run_folder
from tests.unit.cli.fake_service import FakeService, Rubato

RUN = "run_6a0000000000aa"
TIME = "2026-01-31T12:00:00.000000Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that was killed."""
    made = run_folder(tmp_path / "home", RUN)
    made.mkdir(parents=True)
    (made / RUN_FILE).write_text(json.dumps({"name": "toy", "socket": "no-such-socket"}))
    return made


def write(folder: Path, name: str, *lines: dict[str, Any]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_its_output_is_searched_as_a_service_does(folder: Path, service: FakeService, rubato: Rubato) -> None:
    line = {"time": TIME, "worker_id": "w1", "rank": 0, "stream": "stderr", "line": "\x1b[31mEr\x1b[0mror: \u00c4 31m"}
    write(folder, "logs", line, {**line, "line": "fine"})
    for text in ("error", "ERROR: \u00e4 31m"):
        assert rubato("logs", RUN, "--grep", text).out.splitlines() == ["[rank 0 stderr] Error: \u00c4 31m"]
    assert rubato("logs", RUN, "--grep", "[31m").out == ""
    assert service.requests == []


def test_its_metrics_are_exported(folder: Path, service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    row = {"time": TIME, "generation": 1, "workers": 2}
    write(folder, "metrics", *({**row, "step": step, "values": {"loss": 1 / step}} for step in (1, 2, 3)))
    done = rubato("export", RUN, "--tensorboard", str(tmp_path / "board"), "--json")
    assert done.code == 0, done.err
    target = tmp_path / "board" / f"toy-{RUN}"
    assert done.json == {"job": RUN, "steps": 3, "tensorboard": str(target)}
    assert len(list(target.glob("events.out.tfevents.*"))) == 1
    assert service.requests == []
