"""What `rubato run` makes of its command line; nothing is trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rubato.wire.spec import JobSpec
from tests.unit.cli.fake_service import Rubato


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
