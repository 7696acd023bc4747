"""Where words go: data on stdout, everything else on stderr; colour and movement only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

UNBOUNDED = 100_000
"""Columns where no terminal sets a limit; rich takes 80 then."""


def put(text: str) -> None:
    """One piece of data, on stdout."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()


def leave_quietly() -> NoReturn:
    """End well: who reads has enough (`rubato logs | head`). Typer and rich would make an error of it."""
    # Pointed away, else Python complains once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def put_json(value: Any) -> None:
    """Data for programs, on stdout: indented for a person at a terminal, one line otherwise."""
    put(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def put_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Data for people, on stdout: a line for each row, `-` where it has nothing."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper().replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*("-" if row.get(column) is None else str(row[column]) for column in columns))
    stdout_console().print(table, soft_wrap=True)


def tell(data: Any, text: str, *, as_json: bool) -> None:
    """What a change led to: as data for programs, else as a remark for people."""
    if as_json:
        put_json(data)
    else:
        note(text)


def note(text: str) -> None:
    """A remark for people, on stderr."""
    _tell_people(text)


def fail(text: str) -> None:
    """An error, on stderr."""
    from rich.text import Text

    _tell_people(Text.assemble(("error: ", "bold red"), text))


def _tell_people(text: str | Text) -> None:
    """Between words, lines are broken for terminals only: what reads a pipe breaks them itself, or looks for one."""
    console = stderr_console()
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def stderr_console() -> Console:
    """A console on stderr, which shows text as it is. Made anew each time: tests and pagers replace sys.stderr."""
    return _console(stderr=True)


def stdout_console() -> Console:
    """A console on stdout, for tables, which shows text as it is. Where it is no terminal nothing is cut: scripts need
    whole ids.
    """
    size = None if sys.stdout.isatty() else UNBOUNDED
    return _console(width=size, height=size)


def _console(**options: Any) -> Console:
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            if not self.stderr:
                leave_quietly()
            self.quiet = True  # remarks that nobody reads change nothing of how the command ends

    return PipedConsole(markup=False, emoji=False, **options)


def terminal_columns() -> int | None:
    """Width of the terminal on stdout; None where it is none."""
    return stdout_console().width if sys.stdout.isatty() else None


def is_live() -> bool:
    """Whether moving progress lines may be drawn."""
    return stderr_console().is_terminal
