from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rubato.launch.archive import ArchiveTerms, StorageArchive


@pytest.fixture
def posted() -> queue.SimpleQueue[Any]:
    """What an archive says."""
    return queue.SimpleQueue()


@pytest.fixture
def make(posted: queue.SimpleQueue[Any]) -> Iterator[Callable[[ArchiveTerms], StorageArchive]]:
    """Makes archives, which are closed at the end."""
    made: list[StorageArchive] = []

    def build(terms: ArchiveTerms) -> StorageArchive:
        made.append(StorageArchive(terms, posted.put))
        return made[-1]

    yield build
    for archive in made:
        archive.close()
