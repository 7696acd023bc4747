"""These tests need a GPU: one is enough."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in [one for one in items if Path(__file__).parent in one.path.parents]:
            item.add_marker(pytest.mark.skip(reason="this machine has no GPU that torch can use"))
