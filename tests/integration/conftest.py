"""With several test processes a folder's tests stay in one: they share a cluster, or databases."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
