"""Ties a process to the one that started it: it never outlives its supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

PARENT_VARIABLE = "RUBATO_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1


def tether_to_supervisor(environment: Mapping[str, str] = os.environ) -> None:
    """Have the kernel send SIGKILL to this process when the thread that started it ends. The first thing a child does.

    It cannot be set before exec without running Python between fork and exec, which may deadlock in a parent with
    threads; so the window until here is closed by looking at the parent once more afterwards.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    expected = environment.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGKILL)
