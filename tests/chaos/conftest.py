"""One real home for all tests of a module: an idle one would take its share of the cores from the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running_home import RunningHome, running_home
from tests.s3_fixtures import s3, server
from tests.small_disk import small_disk

__all__ = ["home", "running", "s3", "server", "small_disk"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    with running_home(tmp_path_factory.mktemp("cluster") / "home") as home:
        yield home


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
