"""What commands find of a `rubato run` that is over; no service is asked."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rubato.checkpoint.storage import LocalFolder
from rubato.launch.claim import Claim
from rubato.launch.control import RUN_FILE
from rubato.launch.journal import LineFile
from rubato.launch.records import LocalRecord, run_folder
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


def test_its_whole_output_is_printed_where_that_is_asked_for(
    folder: Path, service: FakeService, rubato: Rubato
) -> None:
    line = {"time": TIME, "worker_id": "w1", "rank": 0, "stream": "stdout"}
    write(folder, "logs", *({**line, "line": str(number)} for number in range(250)))
    assert rubato("logs", RUN).out.splitlines() == [f"[rank 0] {number}" for number in range(150, 250)]
    whole = [f"[rank 0] {number}" for number in range(250)]
    assert rubato("logs", RUN, "--all").out.splitlines() == whole
    (folder / "outcome.json").write_text(json.dumps({"state": "failed", "time": TIME}))
    assert rubato("logs", RUN, "--all", "-f").out.splitlines() == whole


def test_its_output_goes_on_over_the_change_to_a_new_file(folder: Path, service: FakeService, rubato: Rubato) -> None:
    file = LineFile(folder / "logs.jsonl", most_bytes=4000)
    line = {"time": TIME, "worker_id": "w1", "rank": 0, "stream": "stdout"}
    for number in range(1, 101):
        file.append(json.dumps({**line, "line": str(number)}))
    file.close()
    shown = rubato("logs", RUN, "--all").out.splitlines()
    assert 40 < len(shown) < 100, "of two files, and of what came before nothing"
    assert shown == [f"[rank 0] {number}" for number in range(101 - len(shown), 101)]
    assert rubato("logs", RUN, "--tail", "60", "-f").out.splitlines() == shown[-60:]
    assert [json.loads(one)["id"] for one in rubato("logs", RUN, "--tail", "2", "--json").out.splitlines()] == [
        "99",
        "100",
    ]


def test_its_metrics_are_exported(folder: Path, service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    row = {"time": TIME, "generation": 1, "workers": 2}
    write(folder, "metrics", *({**row, "step": step, "values": {"loss": 1 / step}} for step in (1, 2, 3)))
    done = rubato("export", RUN, "--tensorboard", str(tmp_path / "board"), "--json")
    assert done.code == 0, done.err
    target = tmp_path / "board" / f"toy-{RUN}"
    assert done.json == {"job": RUN, "steps": 3, "tensorboard": str(target)}
    assert len(list(target.glob("events.out.tfevents.*"))) == 1
    assert service.requests == []


def end(folder: Path, state: str) -> None:
    write(folder, "events", {"time": TIME, "kind": "outcome", "state": state, "result": {}, "failure": None})


def another(folder: Path, run_id: str, **record: str) -> Path:
    made = folder.parent / run_id
    made.mkdir()
    (made / RUN_FILE).write_text(json.dumps({"name": "other", "socket": "no-such-socket", **record}))
    return made


def test_runs_are_listed_newest_first(folder: Path, service: FakeService, rubato: Rubato) -> None:
    end(another(folder, "run_6a0000010000bb"), "succeeded")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "stripe").write_bytes(b"x" * 3_000_000)
    another(folder, "run_6a0000020000cc").joinpath(RUN_FILE).write_text("no record")
    (folder.parent / "mine").mkdir()
    (folder.parent / "mine" / RUN_FILE).write_text("{}")
    done = rubato("ps", "--runs")
    assert [line.split()[:3] for line in done.out.splitlines()[1:]] == [
        ["run_6a0000010000bb", "other", "succeeded"],
        [RUN, "toy", "failed"],
    ]
    assert "They take 3.0 MB" in done.err
    sizes = {one["id"]: one["bytes"] for one in rubato("ps", "--runs", "--json").json}
    assert sizes[RUN] == 3_000_000 + (folder / RUN_FILE).stat().st_size
    for narrowed, found in (
        (("--status", "succeeded"), ["run_6a0000010000bb"]),
        (("--name", "TOY"), [RUN]),
        (("-n", "1"), ["run_6a0000010000bb"]),
        (("--since", "2026-05-10T03:48:17Z"), ["run_6a0000010000bb"]),
        (("--since", "1m"), []),
    ):
        assert [one["id"] for one in rubato("ps", "--runs", "--json", *narrowed).json] == found
    assert "No run matches." in rubato("ps", "--runs", "--name", "no").err
    refused = rubato("ps", "--runs", "--project", "vision")
    assert (refused.code, "has no project" in refused.err) == (1, True)
    assert service.requests == []


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[None]:
    """Its process takes connections, as the system does for one that was stopped, and reads nothing."""
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listening:
        path = str(Path(short) / "control.sock")
        listening.bind(path)
        listening.listen()
        (folder / RUN_FILE).write_text(json.dumps({"name": "toy", "socket": path}))
        yield


def test_a_run_that_does_not_answer_is_listed_beside_the_others(
    folder: Path, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.launch.control.TIMEOUT_S", 0.2)
    end(another(folder, "run_6a0000010000bb"), "succeeded")
    write(folder, "metrics", {"step": 7, "time": TIME, "generation": 1, "workers": 2, "values": {"loss": 0.5}})
    with silent(folder):
        done = rubato("ps", "--runs")
        assert done.code == 0, done.err
        assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["run_6a0000010000bb", RUN]
        assert "running (does not answer)" in done.out
        told = rubato("ps", "--runs", "--status", "running", "--json").json
        assert [(one["id"], one["step"], one["metrics"]) for one in told] == [(RUN, 7, {"loss": 0.5})]
        assert f"{RUN} does not answer (timed out): its process may be stopped" in told[0]["message"]
        assert "does not answer" in rubato("delete", RUN).err


def test_a_run_that_is_over_is_deleted(folder: Path, service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").write_text("")
    (folder / "link").symlink_to(tmp_path / "data")
    (folder / "checkpoints" / "1-3").mkdir(parents=True)
    heir = another(folder, "run_6a0000010000bb", checkpoints=str(folder / "checkpoints"))
    kept = rubato("delete", RUN)
    assert (kept.code, "holds the checkpoints of run_6a0000010000bb" in kept.err) == (1, True)
    assert "move the checkpoints" in rubato("delete", RUN, "--keep-checkpoints").err
    assert rubato("delete", heir.name).code == 0
    assert (folder / "checkpoints" / "1-3").is_dir()
    assert rubato("delete", RUN, "--json").json == {"id": RUN, "name": "toy"}
    assert list(folder.parent.iterdir()) == []
    assert (tmp_path / "data" / "kept").is_file()
    assert rubato("delete", RUN).code == 102
    assert service.requests == []


def test_a_run_that_lives_is_not_deleted(folder: Path, rubato: Rubato, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRecord, "ask", lambda *_: {"workers": []})
    refused = rubato("delete", RUN)
    assert (refused.code, f"{RUN} is alive; `rubato cancel {RUN} --wait` ends it" in refused.err) == (1, True)
    assert (folder / RUN_FILE).is_file()


def test_a_run_whose_checkpoints_another_one_goes_on_with_is_not_deleted(folder: Path, rubato: Rubato) -> None:
    with contextlib.closing(Claim(LocalFolder(folder / "checkpoints"), "python train.py")):
        refused = rubato("delete", RUN)
        assert refused.code != 0
        assert re.search(rf"python train.py \(process .* saves its\s+checkpoints to {RUN}'s", refused.err)
    assert rubato("delete", RUN).code == 0
    assert not folder.exists()


def test_a_run_is_resumed_by_a_command_line_that_is_told(folder: Path, service: FakeService, rubato: Rubato) -> None:
    record = {"name": "toy", "socket": "no-such-socket", "checkpoints": "/my runs/toy", "desired_workers": 3}
    (folder / RUN_FILE).write_text(json.dumps(record))
    done = rubato("resume", RUN)
    assert (done.code, service.requests) == (1, [])
    assert "`rubato run FILE --workers 3 --checkpoint-dir '/my runs/toy'` goes on" in " ".join(done.err.split())
    assert "run_..." not in rubato("resume", "--help").out, "it takes jobs only"


def test_output_of_ranks_that_wrote_nothing_names_those_that_did(
    folder: Path, service: FakeService, rubato: Rubato
) -> None:
    lines = [{"time": TIME, "worker_id": f"w{rank}", "rank": rank, "stream": "stdout", "line": "x"} for rank in (1, 0)]
    write(folder, "logs", *lines)
    assert "No line matches. The newest lines are of ranks 0, 1." in rubato("logs", RUN, "--rank", "9").err
