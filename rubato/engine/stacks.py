"""Where the threads of this process are: like `faulthandler`, but under the interpreter's lock, so always safe."""

from __future__ import annotations

import sys
import threading
from types import FrameType

MAX_THREADS = 100
MAX_FRAMES = 100


def describe_stacks() -> str:
    """All threads, the main thread first; of each the most recent call first.

    No source line is read: files may lie on storage that hangs, which is why somebody asks.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "")))
    lines = []
    for ident, frame in frames[:MAX_THREADS]:
        lines.append(f"Thread {names.get(ident, hex(ident))} (most recent call first):")
        lines += _describe(frame)
    if len(frames) > MAX_THREADS:
        lines.append(f"... and {len(frames) - MAX_THREADS} more threads")
    return "\n".join(lines) + "\n"


def _describe(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < MAX_FRAMES:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_qualname}')
        frame = frame.f_back
    return [*lines, "  ..."] if frame is not None else lines
