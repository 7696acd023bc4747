"""Ties a process to the one that started it: it never outlives its supervisor, also where it was forked for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping

PARENT_VARIABLE = "RUBATO_SUPERVISOR_PID"
CONTROL_VARIABLE, PROGRESS_VARIABLE = "RUBATO_CONTROL_FD", "RUBATO_PROGRESS_FD"
"""Of what a training process inherits from its supervisor."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_adoption = threading.Lock()


def tether_to_supervisor(environment: Mapping[str, str] = os.environ) -> None:
    """Have the kernel send SIGKILL to this process when the thread that started it ends. The first thing a child does.

    It cannot be set before exec without running Python between fork and exec, which may deadlock in a parent with
    threads; so the window until here is closed by looking at the parent once more afterwards.
    """
    if not sys.platform.startswith("linux"):
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = environment.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def adopts_orphans() -> Iterator[None]:
    """Meanwhile, descendants of this process whose parents end become its own children (Linux: a subreaper)."""
    with _adoption:  # it is the whole process's
        before = ctypes.c_int()
        _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
