"""`python train.py`: as a process of its own, and in the test's process where it is to crash at a chosen step."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import own_generators
from torch import nn

import rubato
from rubato import program
from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.storage import LocalFolder, open_folder
from rubato.engine.saver import versions
from rubato.errors import EntrypointError, StorageUnreachable
from rubato.launch.claim import Claim
from rubato.launch.environment import child_environment
from rubato.run import Run
from rubato.wire.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
ROWS = [(torch.full((3,), float(index)) / 10, torch.tensor(float(index % 3))) for index in range(30)]
CODE_OF = functools.cache(program.ProgramCode)
SMALL = ["--batch", "8", "--num-microbatches", "4"]


@pytest.fixture(autouse=True)
def settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`rubato.main` fixes what the bits depend on; other tests keep what they had.

    The program's own code is all that this process has imported from the repository: it is read once.
    """
    monkeypatch.setattr(program, "ProgramCode", CODE_OF)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, fill = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with own_generators():
        yield
    for name in ("classifier", "pace", "mine"):
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def train(run: Run) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, run.config.get("out", 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS[: run.config.get("samples", len(ROWS))])
    for step in run.steps():
        if step.index == run.config.get("crash"):
            # Checkpoints are written beside the training.
            wait_for(Path(run.config["committed"]), f"{run.config.get('attempt', 1)}-*/manifest.json")
            raise ConnectionResetError("the machine is gone")
        for x, y in step:
            step.backward((model(x).mean(1) - y).square().mean())
        optimizer.step()
        run.state["seen"] = run.state.get("seen", 0) + 1


def wait_for(folder: Path, pattern: str) -> None:
    """Until something of this name is there; a minute at most."""
    ends = time.monotonic() + 60
    while not any(folder.glob(pattern)):
        assert time.monotonic() < ends, f"no {pattern} in {folder}"
        time.sleep(0.01)


def result(text: str) -> tuple[int, str]:
    found = re.search(r"done: step (\d+), digest ([0-9a-f]{64})", text)
    assert found, text
    return int(found[1]), found[2]


def test_a_run_that_goes_on_has_the_bits_of_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--batch", "96", "--num-microbatches", "12"]

    def start(steps: int) -> str:
        """`python classifier.py`."""
        done = subprocess.run(
            [sys.executable, "classifier.py", *flags, "--config", f"steps={steps}", "--checkpoint-dir", str(tmp_path)],
            cwd=PROGRAMS,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert result(start(7))[0] == 7
    told = start(16)
    assert "going on from checkpoint 1-7 (step 7)" in told
    monkeypatch.chdir(PROGRAMS.parent)
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    whole, _ = program.load_entrypoint(JobSpec(name="a", entrypoint=f"{PROGRAMS.name}/classifier.py"))
    rubato.main(whole, [*flags, "--config", "steps=16"])
    assert result(told) == result(capsys.readouterr().err)
    assert result(told)[0] == 16


def test_a_run_does_not_begin_anew_over_checkpoints_that_are_damaged(tmp_path: Path) -> None:
    rubato.main(train, [*SMALL, "--config", "steps=3", "--checkpoint-dir", str(tmp_path)])
    (folder,) = tmp_path.glob("1-*")
    (document,) = folder.glob("state*")
    document.write_text("{}")
    with pytest.raises(SystemExit, match=rf"No checkpoint in .* holds: {folder.name}: .* begin afresh"):
        rubato.main(train, [*SMALL, "--config", "steps=5", "--checkpoint-dir", str(tmp_path)])


def test_a_checkpoint_is_refused_in_place_of_its_folder(tmp_path: Path) -> None:
    rubato.main(train, [*SMALL, "--config", "steps=2", "--checkpoint-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"1-2 is itself a checkpoint: name the folder that it lies in"):
        rubato.main(train, [*SMALL, "--config", "steps=4", "--checkpoint-dir", str(tmp_path / "1-2")])


def test_a_folder_that_another_run_saves_in_is_refused(tmp_path: Path) -> None:
    with (
        contextlib.closing(Claim(LocalFolder(tmp_path), "run_other")),
        pytest.raises(SystemExit, match=r"run_other \(process .* saves to .*or give this one another --checkpoint-dir"),
    ):
        rubato.main(train, [*SMALL, "--config", "steps=2", "--checkpoint-dir", str(tmp_path)])
    rubato.main(train, [*SMALL, "--config", "steps=2", "--checkpoint-dir", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["1-2"]


def test_a_run_whose_folder_was_taken_over_stops_and_deletes_nothing() -> None:
    root = open_folder("memory:///taken-over")
    others: list[Claim] = []

    def train_beside_another(run: Run) -> None:
        steps = run.steps

        def watched() -> Iterator[Any]:
            for step in steps():
                if step.index == 3:
                    others.append(Claim(root, "run_other"))
                    (root / "2-1").write("stripe", [b"of another run"])
                yield step

        run.steps = watched  # type: ignore[assignment, method-assign]
        train(run)

    try:
        flags = [*SMALL, "--checkpoint-dir", str(root), "--config", "steps=6"]
        with pytest.raises(
            SystemExit, match=r"run_other .* saves to memory:///taken-over now, so this run has stopped"
        ):
            rubato.main(train_beside_another, flags)
        assert sorted(root.folders()) == ["1-6", "2-1"]
        assert not (root / "1-6").exists("manifest.json")
        assert others[0].taken_by() == ""
    finally:
        root.remove_all()


def test_a_run_does_not_go_on_with_a_dataset_of_another_length(tmp_path: Path) -> None:
    flags = [*SMALL, "--checkpoint-dir", str(tmp_path), "--config"]
    rubato.main(train, [*flags, "steps=2"])
    with pytest.raises(
        SystemExit, match=r"checkpoint 1-2 was trained on a dataset of 30 samples, and now it has 22.*ex"
    ):
        rubato.main(train, [*flags, "steps=4", "--config", "samples=22"])
    assert [path.name for path in tmp_path.iterdir()] == ["1-2"]
    manifest = json.loads((tmp_path / "1-2" / "manifest.json").read_text())
    assert manifest.pop("num_samples") == 30
    del manifest["manifest_sha256"]
    body = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    old = {"manifest_sha256": hashlib.sha256(body.encode()).hexdigest(), **manifest}
    (tmp_path / "1-2" / "manifest.json").write_text(json.dumps(old))
    rubato.main(train, [*flags, "steps=4", "--config", "samples=22"])  # nobody said of what it was made


def test_a_run_that_goes_on_with_another_program_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Edited:
        def __init__(self, _: Any) -> None: ...

        def digest(self) -> str:
            return "edited"

    flags = [*SMALL, "--checkpoint-dir", str(tmp_path), "--config"]
    for steps in ("steps=2", "steps=3"):
        rubato.main(train, [*flags, steps])
    assert "another program" not in capsys.readouterr().err
    monkeypatch.setattr(program, "ProgramCode", Edited)
    rubato.main(train, [*flags, "steps=4"])
    assert "goes on from checkpoint 2-3 with another program than made it" in capsys.readouterr().err
    monkeypatch.setattr(program, "ProgramCode", CODE_OF)
    monkeypatch.setattr("rubato.engine.loading.versions", lambda: {"torch": "another", "order": versions()["order"]})
    rubato.main(train, [*flags, "steps=5"])
    assert "another program" not in capsys.readouterr().err, "the digest differs by the versions, too"


def test_a_run_that_goes_on_past_a_damaged_checkpoint_saves_behind_it(tmp_path: Path) -> None:
    """Else the damaged one would be the newest for long, and nothing would be deleted while it is."""
    for steps in (2, 4):
        rubato.main(train, [*SMALL, "--config", f"steps={steps}", "--checkpoint-dir", str(tmp_path)])
    next((tmp_path / "2-4").glob("*.safetensors")).write_bytes(b"??")
    rubato.main(train, [*SMALL, "--config", "steps=3", "--checkpoint-dir", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-2", "2-4", "3-3"]


def test_a_checkpoint_that_stands_is_not_told_as_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> list[str]:
        raise StorageUnreachable("503 Slow Down")

    monkeypatch.setattr("rubato.launch.clearing.prunable", refuse)
    rubato.main(train, [*SMALL, "--config", "steps=2", "--checkpoint-dir", str(tmp_path)])
    told = capsys.readouterr().err
    assert "old checkpoints could not be cleared away: 503 Slow Down" in told
    assert "skipped" not in told
    assert (tmp_path / "1-2" / "manifest.json").exists()


def test_a_crash_costs_what_came_after_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rubato.main(train, [*SMALL, "--config", "steps=9"])
    expected = result(capsys.readouterr().err)
    monkeypatch.setattr(program, "CHECKPOINT_EVERY_S", 0.0)
    folder = ["--checkpoint-dir", str(tmp_path), "--config", "steps=9"]
    with pytest.raises(ConnectionResetError):
        rubato.main(train, [*SMALL, *folder, "--config", "crash=6", "--config", f"committed={tmp_path}"])
    capsys.readouterr()
    rubato.main(train, [*SMALL, *folder])
    told = capsys.readouterr().err
    assert re.search(r"going on from checkpoint 1-\d \(step [1-6]\)", told), told
    assert result(told) == expected
    rubato.main(train, [*SMALL, *folder])  # nothing is left to do
    again = capsys.readouterr().err
    assert "going on from checkpoint 2-9 (step 9)" in again
    assert result(again) == expected


def test_a_run_that_goes_on_saves_as_often_as_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "CHECKPOINT_EVERY_S", 0.0)
    flags = [*SMALL, "--checkpoint-dir", str(tmp_path), "--config", "steps=20", "--config", f"committed={tmp_path}"]
    for attempt, crash in ((1, 9), (2, 14)):
        with pytest.raises(ConnectionResetError):
            rubato.main(train, [*flags, "--config", f"crash={crash}", "--config", f"attempt={attempt}"])
    capsys.readouterr()
    rubato.main(train, flags)
    assert "going on from checkpoint 2-" in capsys.readouterr().err


def test_the_last_checkpoint_waits_for_a_slow_one_before_it_and_none_that_is_due_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, slow = LocalFolder.write, 0.5

    def write_slowly(self: LocalFolder, name: str, data: Any) -> FileRecord:
        time.sleep(slow)
        return write(self, name, data)

    monkeypatch.setattr(LocalFolder, "write", write_slowly)
    monkeypatch.setattr("rubato.engine.saver.BUSY_S", slow / 10)
    monkeypatch.setattr(program, "CHECKPOINT_EVERY_S", 0.0)
    rubato.main(train, [*SMALL, "--checkpoint-dir", str(tmp_path), "--config", "steps=4"])
    assert (tmp_path / "1-4" / "manifest.json").exists()
    assert "skipped" not in capsys.readouterr().err


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision")
def test_a_checkpoint_of_other_arithmetic_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, "--checkpoint-dir", str(tmp_path), "--config"]
    rubato.main(train, [*flags, "steps=2"])
    rubato.main(train, [*flags, "steps=3"])
    assert "other arithmetic" not in capsys.readouterr().err
    torch.set_float32_matmul_precision("medium")
    rubato.main(train, [*flags, "steps=4"])
    told = capsys.readouterr().err
    assert "training goes on from checkpoint 2-3 with other arithmetic, so bits may differ: precision was" in told
    assert "matmul ieee" in told
    assert "now it is matmul bf16" in told


def test_the_checkpoint_of_another_model_is_told(tmp_path: Path) -> None:
    flags = [*SMALL, "--config", "steps=2", "--checkpoint-dir", str(tmp_path)]
    rubato.main(train, flags)
    with pytest.raises(SystemExit, match=r"CheckpointError: parameter 3.weight is \(2, 5\) .*saved one \(1, 5\)"):
        rubato.main(train, [*flags, "--config", "out=2"])


def test_the_checkpoint_of_another_sample_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [*SMALL, "--checkpoint-dir", str(tmp_path), "--config"]
    with monkeypatch.context() as older:
        older.setattr("rubato.engine.saver.ORDER", "torch.randperm")
        rubato.main(train, [*flags, "steps=2"])
    with pytest.raises(SystemExit, match=r"checkpoint 1-2 was .* orders the samples by torch\.randperm"):
        rubato.main(train, [*flags, "steps=3"])


def test_flags_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Run] = []

    def look(run: Run) -> None:
        seen.append(run)
        train(run)

    rubato.main(look, ["--config", "name=plain", "--config", "steps=1", "--config", 'deep={"a": [1]}', "--seed", "5"])
    (run,) = seen
    assert run.config == {"name": "plain", "steps": 1, "deep": {"a": [1]}}
    spec = run._session.spec
    ordinary = JobSpec(name="ordinary", entrypoint="train.py:train")
    assert (spec.seed, spec.batch, spec.num_microbatches) == (5, ordinary.batch, ordinary.num_microbatches)
    assert result(capsys.readouterr().err)[0] == 1


@pytest.mark.parametrize("flags", [["--batch", "1"], ["--batch", "3", "--num-microbatches", "2"], SMALL])
def test_small_batches_need_no_flag_for_workers(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def plain(run: Run) -> None:
        model = nn.Linear(3, 1)
        run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=ROWS)
        for step in run.steps(steps=2):
            for x, y in step:
                step.backward((model(x).squeeze(1) - y).square().mean())

    rubato.main(plain, flags)
    assert result(capsys.readouterr().err)[0] == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "4", "--num-microbatches", "5"], r"SpecError: .*num_microbatches.*1..global_size \(4\), got 5"),
        (["--batch", "0"], "SpecError: .*global_size.*at least 1, got 0"),
        (["--seed", "-1"], r"SpecError: seed: must lie in 0"),
        (["--config", "steps=0", *SMALL], "ModelError: steps must be a whole number of at least 1, got 0"),
    ],
)
def test_mistakes_end_with_a_sentence(flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        rubato.main(train, flags)


@pytest.mark.parametrize("flags", [["--config", "steps"], ["--config", "=3"], ["--num-microbatches", "many"]])
def test_flags_that_cannot_be_read(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rubato.main(train, flags)
    assert flags[1].strip("=") in capsys.readouterr().err


def test_entrypoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(program, "ProgramCode", CODE_OF.__wrapped__)
    (tmp_path / "mine.py").write_text("import json\ndef train(run): ...\ndef other(run): ...\n")
    function, code = program.load_entrypoint(JobSpec(name="a", entrypoint="mine.py"))
    assert function.__name__ == "train"  # type: ignore[attr-defined]
    assert program.load_entrypoint(JobSpec(name="a", entrypoint="mine.py:other"))[1].digest() == code.digest()
    for entrypoint, message in (
        ("mine.py:nothing", r"mine.py has no function 'nothing' \(it has train, other\)"),
        ("yours.py:train", r"no file yours.py in the working folder \(mine.py there\)"),
        ("not_a_module_of_anybody:train", "no module 'not_a_module_of_anybody'"),
    ):
        with pytest.raises(EntrypointError, match=message):
            program.load_entrypoint(JobSpec(name="a", entrypoint=entrypoint))


def test_modules_are_found_in_a_working_folder_with_a_colon(tmp_path: Path) -> None:
    """PYTHONPATH, which training processes are given, takes it for two folders."""
    folder = tmp_path / "10:30"
    folder.mkdir()
    (folder / "mine.py").write_text("def train(run): ...\n")
    load = "from rubato.program import *; load_entrypoint(JobSpec(name='a', entrypoint='mine:train'))"
    environment = child_environment({**os.environ, "PYTHONPATH": str(ROOT)}, working_dir=folder)
    done = subprocess.run(
        [sys.executable, "-P", "-c", load], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_config_without_a_value_is_refused_as_the_command_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rubato.main(train, [*SMALL, "--config", "lr="])
    assert ended.value.code == 2
    assert "config.lr= has no value; write config.lr=null for none" in " ".join(capsys.readouterr().err.split())
