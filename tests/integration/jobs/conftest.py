"""One real home (Ray, service, agent, keeper) for all tests of the cluster side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.local_job import oracle
from tests.running_home import BATCH, MICROBATCHES, STEPS, RunningHome, running_home

open_homes = ExitStack()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> RunningHome:
    return open_homes.enter_context(running_home(tmp_path_factory.mktemp("cluster") / "home"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    # All tests of this folder are in one process, one after the other, and many come after them: an idle home would
    # take its share of the cores from those.
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        open_homes.close()


@pytest.fixture(scope="session")
def digest() -> str:
    """What one worker makes of the classifier's job."""
    return oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
