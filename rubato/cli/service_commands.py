"""Commands on the service of this machine: up, down, doctor, demo."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from rubato.cli.exits import ExitCode
from rubato.cli.options import JsonOption, UrlOption
from rubato.cli.output import is_live, note, put, put_json, stderr_console
from rubato.errors import ApiError
from rubato.home import Home


class StepLine(AbstractContextManager["StepLine"]):
    """What one waits for: a spinner on a terminal, a line for each step otherwise."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._status = stderr_console().status(title) if is_live() else None

    def __enter__(self) -> StepLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        """The next step."""
        if self._status is not None:
            self._status.update(f"{self._title}: {text}")
        else:
            note(f"{self._title}: {text}")


def up(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            envvar="RUBATO_PORT",
            help="Port of the service on 127.0.0.1. Default: that of the last time, first 8642.",
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="CPU slots for workers. Default: the cores, but at least 8.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in this terminal until Ctrl-C; for systemd and containers.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the service, Ray and the agent of this RUBATO_HOME, and wait until jobs can run."""
    from rubato.cli.keeper import commands, control

    home = Home.from_environment()
    if foreground:
        from rubato.cli.keeper.daemon import keep

        home.create()
        port = home.keep_port(None) if port is None else port
        control.check_port(home, port)
        tell_of_move(control.find_storage_before(home))
        control.check_same(home, slots)
        home.keep_port(port)
        keep(home, port=port, slots=slots or commands.default_slots())
        return
    with StepLine("Starting") as tell:
        state = control.bring_up(home, port=port, slots=slots, tell=tell)
    tell_of_move(state.storage_before)
    link = make_login_link(state.url, home)
    if as_json:
        put_json(
            {
                "url": state.url,
                "login": link,
                "token_file": str(state.token_file),
                "home": str(home.path),
                "slots": state.slots,
            }
        )
        return
    note("Rubato was up already." if state.was_up else f"Rubato is up, with {state.slots} slots for workers.")
    put(state.url)
    if link:
        note(f"  sign in (once)  {link}")
    note(f"  token           {state.token_file}")
    note(f"  state           {home.path}")
    note("  next            rubato submit --recipe image-classifier --follow")
    if (signed_in := home.read_login()) and signed_in.url != state.url:
        note(f"Commands go to {signed_in.url}, where you signed in; `rubato logout` brings them here.")


def tell_of_move(storage_before: str | None) -> None:
    """Say it where checkpoints go elsewhere from now on: a job that goes on looks for its own there only."""
    if storage_before is not None:
        note(
            f"Checkpoints are written to and looked for in {os.environ['RUBATO_STORAGE']} from now on. Those so far "
            f"stay in {storage_before}: copy them, or a job that goes on finds none of its own and begins anew."
        )


def make_login_link(url: str, home: Home) -> str | None:
    """A link that signs a browser in once; None where the service makes none."""
    from rubato.client import Client

    with Client(url, home.read_token(), home=home) as client:
        try:
            return client.login_link()
        except ApiError:
            return None


def down(*, as_json: JsonOption = False) -> None:
    """Checkpoint the running jobs and end every process of this RUBATO_HOME; jobs go on at the next `rubato up`."""
    from rubato.cli.keeper import control

    home = Home.from_environment()
    with StepLine("Stopping") as tell:
        was_up = control.bring_down(home, tell=tell)
    if as_json:
        put_json({"was_up": was_up, "home": str(home.path)})
    else:
        note("Rubato is down; no process is left." if was_up else f"Nothing was up in {home.path}.")


def doctor(*, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Look at this machine and at the service, and say what would get in the way."""
    from rubato.cli.doctor import Level, examine

    findings = examine(Home.from_environment(), url)
    if as_json:
        put_json([{"level": found.level, "what": found.what, "detail": found.detail} for found in findings])
    else:
        marks = {Level.OK: "ok  ", Level.WARNING: "warn", Level.PROBLEM: "FAIL"}
        for found in findings:
            put(f"{marks[found.level]}  {found.what}: {found.detail}")
    if any(found.level == Level.PROBLEM for found in findings):
        raise typer.Exit(ExitCode.ERROR)


def demo(*, as_json: JsonOption = False) -> None:
    """Train a classifier; scale it, kill a worker, and compare the bits with an undisturbed run."""
    from rubato.cli.demo import run_demo

    raise typer.Exit(run_demo(as_json=as_json))
