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
