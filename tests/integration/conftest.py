"""With several test processes, the tests that share the local Ray stay in one; the others are shared out by file."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What takes longest comes first, so that no process waits for it at the end.
    items.sort(key=lambda item: item.path.parent.name != "jobs")


class ByNeed(LoadScopeScheduling):
    """All of `jobs` to one process; elsewhere, each file to one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        folder = path.rsplit("/", 1)[0]
        return folder if folder.endswith("/jobs") else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    # Not by xdist's own groups: xdist 3.8 writes them into what pytest 9 does not read any more, and says nothing.
    config.option.loadscopereorder = False
    return ByNeed(config, log)
