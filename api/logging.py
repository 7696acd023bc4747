"""Logs go to stderr: readable on a terminal, JSON lines otherwise."""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO, cast

import structlog


class UnfailingOutput(io.TextIOBase):
    """A stream whose disk may be full: what cannot be written is dropped and counted, and fails nobody's request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = 0

    def write(self, text: str) -> int:
        """Write, or drop; says how much was dropped once there is room again."""
        try:
            if self._dropped and text.strip():
                self._stream.write(f"{self._dropped} pieces of this log could not be written and are lost\n")
                self._stream.flush()
                self._dropped = 0
            self._stream.write(text)
        except OSError:
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        """Likewise."""
        try:
            self._stream.flush()
        except OSError:
            self._dropped += 1

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return self._stream.isatty()


def configure_logging() -> None:
    """Send structlog and the standard library's logging the same way."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    output = cast(TextIO, UnfailingOutput(sys.stderr))
    is_terminal = output.isatty()
    last: list[structlog.typing.Processor] = (
        # The pretty tracebacks show local variables, and with them tokens.
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if is_terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
