"""`python -m api`: the service, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from api.app import create_app
from api.logging import configure_logging
from rubato.errors import UserError
from service.database import HomeInUse
from service.database_file import DatabaseFile, DatabaseLost
from service.settings import Settings
from service.startup import ADMIN_TOKEN_FILE, Running

GRACE_S = 10
IDLE_CONNECTION_S = 75
"""Longer than clients and proxies keep theirs (httpx 5 s, nginx 60 s): who closes first must not be the service, whose
close would cross a request that is on its way."""


class Server(uvicorn.Server):
    """uvicorn that ends streams and long polls when it is told to stop, instead of waiting for them to end."""

    app: FastAPI

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal: wake all that wait."""
        context = getattr(self.app.state, "context", None)
        if context is not None:
            context.hub.close()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:
        """Tell where the page is, once somebody can connect."""
        await super().startup(sockets)
        running: Running | None = getattr(self.app.state, "running", None)
        if self.should_exit or running is None:
            return
        cut_off_stalled(self.servers, self.app.state.context.settings.stalled_after)
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        print(f"Rubato listens on http://{host}:{port}", flush=True)
        settings = running.context.settings
        if shows_login_link(settings):
            print(f"Sign in once by http://{host}:{port}/login?code={await running.make_login_code()}", flush=True)
        else:
            print(f"Sign in with the token in {settings.home / ADMIN_TOKEN_FILE}", flush=True)


def shows_login_link(settings: Settings) -> bool:
    """Whether a link that signs in as admin is only seen by who started the service.

    What a container or a server prints is a log, which more people read than may be admins; and the link leads to the
    page only where no proxy stands before it.
    """
    return not settings.behind_tls_proxy and (settings.is_loopback or sys.stdout.isatty())


def cut_off_stalled(servers: Iterable[asyncio.Server], after: timedelta) -> None:
    """Let the kernel reset connections whose peer takes nothing; accepted ones inherit it from those that listen.

    A watcher who stopped reading, or whose machine is gone, would hold its stream for ever: sending just waits.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only
        return
    for server in servers:
        for listening in server.sockets:
            if listening.family in (socket.AF_INET, socket.AF_INET6):
                listening.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(after / timedelta(milliseconds=1))
                )


def read_settings(arguments: Sequence[str]) -> Settings:
    """Settings from the environment; flags win.

    Raises:
        SystemExit: with a message on wrong ones.
    """
    parser = argparse.ArgumentParser(prog="python -m api", description="The Rubato job service.")
    parser.add_argument("--host", help="address to listen on (RUBATO_HOST)")
    parser.add_argument("--port", type=int, help="port to listen on (RUBATO_PORT)")
    parser.add_argument(
        "--behind-tls-proxy",
        action="store_true",
        default=None,
        help="a proxy in front speaks TLS: allow other addresses",
    )
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        messages = "; ".join(f"{'.'.join(map(str, item['loc']))} {item['msg']}".strip() for item in error.errors())
        parser.error(messages)


async def serve(settings: Settings) -> bool:
    """Run until a signal; whether it ever listened.

    Raises:
        HomeInUse: another service works on the same SQLite database.
        DatabaseLost: the file of the SQLite database is gone or damaged, at the start or since.
    """
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=settings.behind_tls_proxy,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=IDLE_CONNECTION_S,
        # Entered here instead: what goes wrong at start then reaches `main`, and what ends, ends behind the last reply.
        lifespan="off",
    )
    server = Server(config)
    server.app = app
    async with app.router.lifespan_context(app):
        file = app.state.context.database.file
        watch = None if file is None else asyncio.create_task(_stop_when_lost(file, server))
        try:
            await server.serve()
        finally:
            if watch is not None:
                watch.cancel()
    if file is not None and file.because:
        raise DatabaseLost(file.because)
    return server.started


async def _stop_when_lost(file: DatabaseFile, server: Server) -> None:
    """Nothing can be stored any more: end, so that everybody sees it."""
    await file.is_lost.wait()
    server.app.state.context.hub.close()
    server.should_exit = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; 0 after an orderly end."""
    settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logging()
    # Tokens, logs and uploaded code are nobody else's business.
    os.umask(0o077)
    # uvicorn stops in order, then raises the signal again, which would end us as if killed: an orderly end is 0.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        has_started = asyncio.run(serve(settings))
    except (HomeInUse, DatabaseLost, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if has_started else 1


if __name__ == "__main__":
    sys.exit(main())
