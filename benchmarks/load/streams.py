"""Readers of event streams that cost little themselves: hundreds share one core with the service that they watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from benchmarks.load.service import Service

LARGEST_LINE = 16 * 2**20


async def watch(service: Service, path: str, heard: Callable[[float, bytes], None], ready: asyncio.Event) -> None:
    """Read a stream until the task is cancelled.

    Args:
        heard: called with the moment (monotonic) and the text of each `data:` line.
        ready: set when the service has answered.
    Raises:
        RuntimeError: the service refused, or closed the stream.
    """
    where = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=LARGEST_LINE)
    try:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {service.token}\r\n\r\n"
        )
        writer.write(request.encode())
        answer = await reader.readline()
        if b" 200 " not in answer:
            raise RuntimeError(f"GET {path}: {answer.decode(errors='replace').strip()}")
        ready.set()
        while line := await reader.readline():
            if line.startswith(b"data:"):
                heard(time.monotonic(), line[5:])
        raise RuntimeError(f"GET {path}: the service closed the stream")
    finally:
        writer.close()
