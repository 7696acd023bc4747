"""One real home (Ray, service, agent, keeper) for all tests of the cluster side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local_job import oracle
from tests.running_home import BATCH, MICROBATCHES, STEPS, RunningHome, running_home


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    # Many tests come after those of this folder: an idle home would take its share of the cores from them.
    with running_home(tmp_path_factory.mktemp("cluster") / "home") as home:
        yield home


@pytest.fixture(scope="session")
def digest() -> str:
    """What one worker makes of the classifier's job."""
    return oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
