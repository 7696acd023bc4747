"""What one watches: the same picture again every two seconds, in place on a terminal, one below the other in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.cli.output import note, stdout_console
from rubato.errors import ApiError, ServiceUnreachable

if TYPE_CHECKING:
    from rich.console import RenderableType

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show again every 2 seconds, until Ctrl-C.")]
EVERY_S = 2.0


@dataclass(frozen=True)
class Picture:
    """What is shown at one time."""

    parts: Sequence[RenderableType]
    """Data: text and tables, on stdout."""
    remarks: Sequence[str] = ()
    """For people, on stderr; on a watched screen below the data."""
    is_last: bool = False
    """It will never change again."""


def show(take: Callable[[], Picture], *, watch: bool) -> None:
    """Show a picture once; with `watch` again and again, until it is the last one or Ctrl-C."""
    if not watch:
        _put(take())
        return
    try:
        _watch_in_place(take) if stdout_console().is_terminal else _watch_in_lines(take)
    except KeyboardInterrupt:
        return


def _put(picture: Picture) -> None:
    console = stdout_console()
    for part in picture.parts:
        console.print(part, soft_wrap=True, markup=False, highlight=False)
    for remark in picture.remarks:
        note(remark)


def _watch_in_lines(take: Callable[[], Picture]) -> None:
    """Who reads lines may be a script: after a minute without the service it is told so."""
    from rubato.client.absence import Absence

    picture = take()
    _put(picture)
    away = Absence()
    while not picture.is_last:
        time.sleep(EVERY_S)
        try:
            picture = take()
        except (ServiceUnreachable, ApiError) as error:
            away.bear(error)
            continue
        away.end()
        _put(picture)


def _watch_in_place(take: Callable[[], Picture]) -> None:
    """On the terminal's second screen, as `top` does; the last picture stays on the first one."""
    from rich.live import Live

    from rubato.client import transport

    picture = take()
    taken_at = datetime.now()
    is_away = False
    try:
        with Live(console=stdout_console(), screen=True, auto_refresh=False) as live:
            while not picture.is_last:
                live.update(_screen(picture, taken_at, is_away=is_away), refresh=True)
                time.sleep(EVERY_S)
                try:
                    picture = take()
                    taken_at, is_away = datetime.now(), False
                except (ServiceUnreachable, ApiError) as error:
                    if not transport.is_away(error):
                        raise
                    is_away = True  # What was last known stays, with its time.
    finally:
        _put(picture)


def _screen(picture: Picture, taken_at: datetime, *, is_away: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    foot = f"{taken_at:%H:%M:%S}  every {EVERY_S:g} s, Ctrl-C ends"
    away = "The service does not answer; this is how it was at "
    last = Text(away + foot, style="yellow") if is_away else Text(foot, style="dim")
    return Group(*picture.parts, *(Text(remark, style="dim") for remark in picture.remarks), Text(), last)
