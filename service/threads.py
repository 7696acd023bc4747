"""Threads for what may take long, apart from each other: a search, a download or a slow disk stops nothing else."""

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
APPENDS = ThreadPoolExecutor(2 * NUM_THREADS, thread_name_prefix="append")
"""To logs: each waits for its disk."""
HOME_FILES = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="home")
"""Packages taken in, and what the sweep removes: a disk that hangs holds up these, and no other work."""
REDACTIONS = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="redact")
"""Reports of jobs that have secrets; nothing in them waits."""
DISK_LOOKS = ThreadPoolExecutor(1, thread_name_prefix="disk")
"""How much room there is, for readiness: one look at a time."""


async def run_in(threads: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises; it waits where all these threads are busy."""
    return await asyncio.get_running_loop().run_in_executor(threads, functools.partial(work, *args, **kwargs))
