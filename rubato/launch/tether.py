"""Ties a process to the one that started it: it never outlives its supervisor, also where it was forked for it.

Nor does what it starts, unless that leaves its process group: the kernel's signal reaches the process alone, and the
rest of the group has a guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping

PARENT_VARIABLE = "RUBATO_SUPERVISOR_PID"
CONTROL_VARIABLE, PROGRESS_VARIABLE, GUARD_VARIABLE = "RUBATO_CONTROL_FD", "RUBATO_PROGRESS_FD", "RUBATO_GUARD_FD"
"""Of what a training process inherits from its supervisor."""
_SHELL = "/bin/sh"
_GUARD = 'trap "" HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM; exec 3<&0; (read nothing <&3; kill -9 0) &'
"""Waits for the end of file on its input, then kills its own group. The shell that forks it ends at once; what that
ignores it ignores from its first moment."""
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


def guard_group() -> None:
    """Have this process's group killed when the supervisor, which holds the other end of a pipe, is gone or lets go.

    The guard is in the group that it kills, so no other group can have that number. It is no child of this process,
    whose program may wait for all children, and a shell: a fork would copy the page tables of torch, for 20 ms.
    """
    given = os.environ.pop(GUARD_VARIABLE, "")
    if not given:
        return
    pipe = int(given)
    os.set_inheritable(pipe, False)  # not for the children of user code
    if os.getpgrp() == os.getpid():
        nowhere = [(os.POSIX_SPAWN_OPEN, output, os.devnull, os.O_WRONLY, 0) for output in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, pipe, 0), *nowhere]
        with contextlib.suppress(OSError):  # no process to be had: it is done without
            os.waitpid(os.posix_spawn(_SHELL, (_SHELL, "-c", _GUARD), {}, file_actions=actions), 0)
    os.close(pipe)


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
