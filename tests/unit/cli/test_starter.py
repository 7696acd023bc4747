from __future__ import annotations

import json
from pathlib import Path

import pytest

from rubato.cli.app import run
from rubato.cli.specfile import read_draft
from rubato.cli.starter import Template
from rubato.wire.spec import parse_spec


def test_the_starter_is_a_valid_spec_and_a_valid_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "My First Job!"
    assert run(["init", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/{name}" for name in ("train.py", "job.yaml", ".rubatoignore")
    ]
    spec = parse_spec(read_draft(str(folder / "job.yaml")).data)
    assert (spec.name, spec.entrypoint, spec.workers.initial) == ("my-first-job", "train.py:train", 2)
    compile((folder / "train.py").read_text(), "train.py", "exec")


@pytest.mark.parametrize("template", list(Template))
def test_every_template_has_a_valid_spec(tmp_path: Path, template: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path), "-t", template, "--name", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["train.py", "job.yaml", ".rubatoignore"]
    spec = parse_spec(read_draft(str(tmp_path / "job.yaml")).data)
    assert {"steps", "epochs"} & set(spec.config)
    program = (tmp_path / "train.py").read_text()
    unused = [name for name in spec.config if f'"{name}"' not in program]
    assert set(unused) <= {"steps", "epochs"}, "these Rubato itself reads"


def test_files_are_not_replaced_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("mine")
    assert run(["init", str(tmp_path)]) == 1
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == "mine"
    assert not (tmp_path / "job.yaml").exists()
    assert run(["init", str(tmp_path), "--force", "--name", "other"]) == 0
    assert read_draft(str(tmp_path / "job.yaml")).data["name"] == "other"
