"""One real home (Ray, service, agent, keeper) for all tests of the cluster side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running_home import RunningHome, running_home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    with running_home(tmp_path_factory.mktemp("cluster") / "home") as home:
        yield home


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
