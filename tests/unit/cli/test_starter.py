from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import AloneRun, own_generators

from rubato.cli.app import run
from rubato.cli.specfile import read_draft
from rubato.cli.starter import Template
from rubato.wire.spec import parse_spec

ROOT = Path(__file__).resolve().parents[3]


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


def test_a_name_that_no_job_may_have_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path / "new"), "--name", "Not A Name"]) == 2
    assert "'Not A Name' is no name of a job" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()
    assert run(["init", str(tmp_path / "new"), "--name", "not-a-name"]) == 0


class PreparedOnly(AloneRun):
    """A run on another device than the CPU that ends where training would begin."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("meta")

    def steps(self, epochs: int | None = None, steps: int | None = None) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize("program", ["plain", "stream", "README"])
def test_programs_put_their_model_where_the_microbatches_come(program: str) -> None:
    if program == "README":
        (text,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    else:
        text = (ROOT / f"rubato/starters/{program}.py").read_text()
    names: dict[str, Any] = {"__name__": program}
    exec(compile(text, program, "exec"), names)
    run = PreparedOnly()
    with own_generators():
        names["train"](run)
    assert run._prepared is not None
    assert {one.device.type for one in run._prepared["models"][""].parameters()} == {"meta"}
