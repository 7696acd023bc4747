"""The end of a test that its own timeout cannot end: the stacks of all threads are printed, and the process leaves.

The timeout of a test is an alarm: it waits where the main thread stays in C, and there is none for the teardown of a
test that failed. Then one process would never end, and with it the whole run. Another one continues in its place, and
says by which test it was ended.
"""

from __future__ import annotations

import faulthandler
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

GRACE = 60.0
"""Seconds that a test gets to end after its timeout."""

LIMIT = pytest.StashKey[float]()
"""Of an item: its timeout and the grace."""


def watch(item: pytest.Item) -> None:
    # Not the standard error of the test, which is kept until its end.
    faulthandler.dump_traceback_later(item.stash[LIMIT], exit=True, file=item.config.stash[fault_handler_stderr_fd_key])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[LIMIT] = settings.timeout + GRACE
    watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # Anew, with as much time: with a failure, pytest and its plugins give up all that watches.
    if LIMIT in item.stash:
        watch(item)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()
