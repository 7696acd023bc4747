"""What unit tests share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """A run looks at all objects there are when it begins: those of all other test modules are none of its business."""
    gc.collect()
    gc.freeze()
