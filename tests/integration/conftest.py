"""With several test processes, the tests that share the local Ray stay in one; the others are shared out by file."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == "jobs" else str(item.path)))
