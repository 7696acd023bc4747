"""Mistakes as a person makes them at the command line: each is answered by what is wrong and what to do."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from rubato.cli.app import run
from tests.running_home import PATIENCE_S, RunningHome

pytestmark = pytest.mark.timeout(900)

PROGRAM = """
import torch
import rubato


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(2)


def train(run):
    model = torch.nn.Linear(2, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=Data())
    for number, step in enumerate(run.steps(steps=20)):
        for index, x in enumerate(step):
            if number == 7 and step.microbatch == 2:
                raise ValueError("the seventh step is bad")
            step.backward(model(x).mean())
"""
Rubato = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rubato(running: RunningHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rubato:
    """The command in the running home: exit code, stdout, stderr."""
    monkeypatch.setenv("RUBATO_HOME", str(running.home.path))
    monkeypatch.delenv("RUBATO_URL", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "dynamic.py").write_text("globals()['begin'] = lambda run: None\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n\ndef train(run): pass\n")
    return tmp_path


def write_spec(
    folder: Path, name: str, entrypoint: str = "train.py", more: str = "workers: {initial: 2, max: 4}"
) -> str:
    path = folder / f"{name}.yaml"
    batch = "batch: {global_size: 16, num_microbatches: 8}"
    path.write_text(f"name: {name}\nentrypoint: {entrypoint}\nworking_dir: .\n{batch}\n{more}\n")
    return str(path)


ENTRYPOINTS = {
    "function": ("dynamic.py:nothing", "dynamic.py has no function 'nothing' (it has begin)"),
    "module": ("no.such.module:train", "there is no module 'no.such.module' in the working folder or installed"),
    "import": ("broken.py", "No module named 'no_such_module'"),
}


def test_programs_that_cannot_be_loaded(rubato: Rubato, running: RunningHome, folder: Path) -> None:
    jobs = {}
    for name, (entrypoint, _) in ENTRYPOINTS.items():
        code, out, err = rubato("submit", write_spec(folder, f"no-{name}", entrypoint, "workers: {initial: 1, max: 4}"))
        assert code == 0, err
        jobs[name] = out.strip()
    running.jobs += jobs.values()
    for name, (_, says) in ENTRYPOINTS.items():
        assert rubato("wait", jobs[name], "--timeout", str(PATIENCE_S))[:2] == (100, "failed\n")
        code, out, _ = rubato("get", jobs[name])
        assert code == 0
        assert says in out
        assert "while loading the training program" in out
        assert "submit again" in out
        failure = running.client.job(jobs[name]).failure
        assert failure is not None
        assert (failure["failure_class"], failure["step"]) == ("user", None)
        # A traceback is the user's own, or there is none.
        assert "child.py" not in out
        assert ("import no_such_module" in out) == (name == "import")
        assert rubato("logs", jobs[name])[0] == 0
    code, _, err = rubato("scale", jobs["function"], "3")
    assert code == 1
    assert "no-function has failed; only a job that has not ended can be scaled" in err


def test_what_is_not_there_is_refused_at_once(rubato: Rubato, running: RunningHome, folder: Path) -> None:
    before = len(list(running.client.jobs()))
    code, out, err = rubato("submit", write_spec(folder, "no-file", "missing.py"))
    assert (code, out) == (1, "")
    assert "there is no file missing.py" in err
    code, out, err = rubato("submit", write_spec(folder, "no-function", "train.py:nothing"))
    assert (code, out) == (1, "")
    assert "train.py has no function 'nothing'; its functions are train" in err
    assert len(list(running.client.jobs())) == before


def test_an_exception_in_step_7_is_shown_with_its_place(rubato: Rubato, running: RunningHome, folder: Path) -> None:
    code, out, err = rubato("submit", write_spec(folder, "seventh"), "--follow")
    assert code == 100, err
    running.jobs.append(job := out.strip())
    assert "ValueError: the seventh step is bad (in step 7, microbatch 2). The traceback names the line" in err
    failure = running.client.job(job).failure
    assert failure is not None
    assert (failure["step"], failure["microbatch"]) == (7, 2)
    assert failure["rank"] in (0, 1)
    assert failure["worker_id"].startswith("w")
    for fact in (f"rank: {failure['rank']}", f"worker: {failure['worker_id']}", "step: 7", "microbatch: 2"):
        assert f"failure {fact}" in err
    assert 'raise ValueError("the seventh step is bad")' in err
    assert "child.py" not in err
    assert any("the seventh step is bad" in line.line for line in running.client.logs(job))
    assert job in rubato("ps", "-a")[1], "an id is not cut where a script reads it"


def test_specs_that_do_not_hold_and_counts_out_of_bounds(rubato: Rubato, running: RunningHome, folder: Path) -> None:
    code, _, err = rubato("submit", write_spec(folder, "bounds", more="workers: {initial: 9, max: 4}"))
    assert code == 1
    assert "workers.initial: must lie in workers.min..workers.max (1..4), got 9" in err
    code, _, err = rubato("submit", write_spec(folder, "unknown", more="workrs: {initial: 2}\nseed: many"))
    assert code == 1
    assert "workrs: unknown field; did you mean 'workers'?" in err
    assert "seed: " in err
    code, _, err = rubato("submit", write_spec(folder, "malformed", more="workers: {initial: 2"))
    assert code == 1
    assert "malformed.yaml is not well-formed" in err
    assert "line 5" in err
    code, _, err = rubato("submit", "--recipe", "image-classifer")
    assert code == 1
    assert "did you mean 'image-classifier'?" in err
    assert not list(running.client.jobs(text="classifer"))

    code, out, _ = rubato("submit", "--recipe", "image-classifier", "--name", "small", "--set", "workers.max=4")
    assert code == 0
    running.jobs.append(out.strip())
    code, _, err = rubato("scale", "small", "7")
    assert code == 1
    assert "workers must lie in 1..4 (workers.min..workers.max of the spec; `rubato update` changes them), got 7" in err
    assert rubato("cancel", "small", "--force")[0] == 0


def test_a_wrong_token_says_where_the_right_one_is(rubato: Rubato, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_wrong")
    code, _, err = rubato("ps")
    assert code == 4
    assert "The admin token lies in the file 'token' of the service's home" in err
    assert "RUBATO_TOKEN" in err


def test_what_only_a_program_would_send(running: RunningHome) -> None:
    headers = {"Authorization": f"Bearer {running.home.token_file.read_text().strip()}"}
    evil = io.BytesIO()
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("../evil.py", "x = 1")
    body = evil.getvalue()
    with httpx.Client(base_url=running.client.url, headers=headers, trust_env=False) as http:
        address = f"/api/v1/packages/{hashlib.sha256(body).hexdigest()}"
        refused = http.put(address, content=body, headers={"Content-Type": "application/zip"})
        assert (refused.status_code, refused.json()["code"]) == (422, "package_invalid")
        assert "'../evil.py' leads out of the folder by '..'" in refused.json()["detail"]
        assert http.head(address).status_code == 404

        yaml = {"Content-Type": "application/yaml"}
        malformed = http.post("/api/v1/jobs", content="name: [a,\n", headers=yaml)
        assert malformed.status_code == 422
        assert "line 2" in malformed.json()["detail"]
        unknown = http.post("/api/v1/jobs", content="name: a\nrecipe: char-lm\nworkrs: 1\n", headers=yaml)
        assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_spec")
        assert unknown.json()["errors"] == [{"path": "workrs", "message": "unknown field; did you mean 'workers'?"}]
