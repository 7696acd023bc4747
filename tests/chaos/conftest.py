"""One real home for all tests of a module: an idle one would take its share of the cores from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.invariants import Undisturbed, undisturbed
from tests.running_home import BATCH, MICROBATCHES, STEPS, RunningHome, running_home
from tests.s3_fixtures import s3, server
from tests.small_disk import small_disk

__all__ = ["home", "running", "s3", "server", "small_disk"]


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("short") is None:
            item.add_marker("long")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    with running_home(tmp_path_factory.mktemp("cluster") / "home") as home:
        yield home


@pytest.fixture(scope="session")
def alone() -> Undisturbed:
    """What one worker makes of the classifier's job."""
    batch = {"global_size": BATCH, "num_microbatches": MICROBATCHES}
    return undisturbed("classifier", batch=batch, config={"steps": STEPS})


@pytest.fixture(scope="session")
def digest(alone: Undisturbed) -> str:
    return alone.digest


@pytest.fixture
def running(home: RunningHome) -> Iterator[RunningHome]:
    """The home, and no job of this test left in it."""
    yield home
    home.end_jobs()
