"""Threads for long reads, apart from those in which reports are written: a search or a download stops no job."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

NUM_THREADS = 4
SEARCHES = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="search")
"""Through logs, up to 64 MiB of text each."""
DOWNLOADS = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="download")
"""From object stores, which may be slow."""


async def run_in(threads: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises; it waits where all these threads are busy."""
    return await asyncio.get_running_loop().run_in_executor(threads, functools.partial(work, *args, **kwargs))
