"""What `rubato run` makes of its command line; nothing is trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rubato.wire.spec import JobSpec
from tests.unit.cli.fake_service import FakeService, Reply, Rubato, job


def test_a_recipe_runs_where_one_is(rubato: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[tuple[JobSpec, Path]] = []

    def run_local(spec: JobSpec, *, working_dir: Path, **_: Any) -> int:
        ran.append((spec, working_dir))
        return 0

    monkeypatch.setattr("rubato.launch.local.run_local", run_local)
    assert rubato("run", "--recipe", "char-lm", "--workers", "3", "--config", "steps=2").code == 0
    ((spec, folder),) = ran
    assert (spec.recipe, spec.entrypoint, spec.workers.initial, spec.config) == ("char-lm", None, 3, {"steps": 2})
    assert folder == tmp_path


def test_batch_and_seed_are_said_alike_to_run_and_submit(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[JobSpec] = []
    monkeypatch.setattr("rubato.launch.local.run_local", lambda spec, **_: ran.append(spec) or 0)
    service.on("POST", "/jobs", Reply(job(), 201))
    flags = ("--batch", "32", "--num-microbatches", "16", "--seed", "7")
    for settings, seed in (((), 7), (("--set", "seed=9"), 9)):
        for command in ("run", "submit"):
            done = rubato(command, "--recipe", "char-lm", *flags, *settings)
            assert done.code == 0, done.err
        body = service.requests[-1].json
        assert (body["batch"], body["seed"]) == ({"global_size": 32, "num_microbatches": 16}, seed)
        assert (ran[-1].batch.global_size, ran[-1].batch.num_microbatches, ran[-1].seed) == (32, 16, seed)


def test_a_function_that_is_not_there_starts_nothing(
    rubato: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[JobSpec] = []
    monkeypatch.setattr("rubato.launch.local.run_local", lambda spec, **_: ran.append(spec) or 0)
    (tmp_path / "train.py").write_text("def train(run): ...\n")
    done = rubato("run", f"{tmp_path}/train.py:trainn")
    assert (done.code, ran) == (1, [])
    assert done.err == "error: train.py has no function 'trainn'; did you mean 'train'?\n"
    missing = rubato("run", f"{tmp_path}/trian.py")
    assert (missing.code, ran) == (1, [])
    assert "trian.py; did you mean 'train.py'?" in missing.err
    assert rubato("run", f"{tmp_path}/train.py").err == ""
    assert len(ran) == 1


def test_far_more_workers_than_cores_are_remarked(rubato: Rubato, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.launch.local.run_local", lambda *_, **__: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert rubato("run", "--recipe", "char-lm", "--workers", "8").err == ""
    done = rubato("run", "--recipe", "char-lm", "--workers", "99", "--set", "workers.max=99", "--batch", "99")
    assert (done.code, "99 workers share 2 cores" in done.err) == (0, True), done.err
