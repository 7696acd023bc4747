from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rubato.launch.local import LocalRun
from tests.integration.launch.toy_run import TOY, Background


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def background(home: Path, tmp_path: Path) -> Iterator[Any]:
    started: list[Background] = []

    def start(job: Any) -> Background:
        run = LocalRun(job, tmp_path, None, home, TOY, io.StringIO())
        started.append(Background(run))
        return started[-1]

    yield start
    for one in started:
        if one.outcome is None:
            one.ask(verb="cancel", force=True)
            one.join()
