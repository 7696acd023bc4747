"""These tests need a GPU: one is enough. Those that a device parametrises run on the CPU too, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in [one for one in items if Path(__file__).parent in one.path.parents]:
            if not is_on_cpu(item):
                item.add_marker(pytest.mark.skip(reason="this machine has no GPU that torch can use"))


def is_on_cpu(item: pytest.Item) -> bool:
    """Whether the test is one of several, and this one is for the CPU."""
    return hasattr(item, "callspec") and item.callspec.params.get("device") == "cpu"
