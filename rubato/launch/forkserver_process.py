"""The fork server, `python -m rubato.launch.forkserver_process`: imports, then forks until its socket closes.

from the launcher    {"variables": {...}, "descriptors": [names]}, with the descriptors of stdout, stderr and go, and
                     one for each name
to it                READY once; then the pid of each fork, when that is the launcher's child and leads its own session

It forks twice: when the one between has ended, the kernel gives the second to the launcher, which has asked for
orphans. The fork begins when it reads a byte from go. At the end of file it ends: the launcher has not heard of it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from rubato.launch import child
from rubato.launch.forkserver import READY, SERVER_VARIABLE
from rubato.launch.tether import tether_to_supervisor

_IMPORTS = ("numpy", "torch._dynamo", "rubato.program")
"""What starts threads comes first: then there is nothing to fork, and little was lost by trying."""
_MAX_REQUEST = 1 << 16
_MAX_DESCRIPTORS = 16


def main() -> None:
    """Serve; in a fork: train."""
    tether_to_supervisor()
    connection = socket.socket(fileno=int(os.environ.pop(SERVER_VARIABLE)))
    os.set_inheritable(connection.fileno(), False)
    for name in _IMPORTS:
        importlib.import_module(name)
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return  # threads are not forked
    if sys.modules["torch"].cuda.is_initialized():
        return  # nor is a CUDA context
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise write to, and so copy, every page with an object
    connection.send(READY)
    if _serve(connection):
        child.main()


def _serve(connection: socket.socket) -> bool:
    """Fork as asked. Returns True in each fork, once its launcher knows of it, False in the server at the end."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST, _MAX_DESCRIPTORS)
        if not request:
            return False
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)
            connection.close()
            os.close(reader)
            _become(json.loads(request), descriptors, writer)
            return True
        os.close(writer)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        connection.send(os.read(reader, 64))
        os.close(reader)


def _become(request: dict[str, Any], descriptors: list[int], pid_to: int) -> None:
    """Take over what a fresh process would have been started with."""
    stdout, stderr, go, *others = descriptors
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    os.environ.update(request["variables"])
    os.environ.update({name: str(one) for name, one in zip(request["descriptors"], others, strict=True)})
    os.write(pid_to, str(os.getpid()).encode())
    os.close(pid_to)
    if not os.read(go, 1):
        os._exit(child.EXIT_ENGINE)
    os.close(go)


if __name__ == "__main__":
    main()
