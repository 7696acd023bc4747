"""One real home for all recipes of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running_home import RunningHome, running_home
from tests.s3_fixtures import s3, server

__all__ = ["home", "running", "s3", "server"]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    with running_home(tmp_path_factory.mktemp("recipes") / "home") as home:
        yield home


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
