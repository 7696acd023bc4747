"""Where words go: data on stdout, everything else on stderr; colour and movement only on a terminal.

Whatever is shown here may have been chosen by a job: it goes through `rubato.wire.terminal.readable`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rubato.wire.terminal import readable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

UNBOUNDED = 100_000
"""Columns where no terminal sets a limit; rich takes 80 then."""


def put(text: str) -> None:
    """One piece of data, on stdout; of its control sequences a terminal gets the colours, and a pipe nothing."""
    _write(readable(text, keep_colours=sys.stdout.isatty()))


def _write(text: str) -> None:
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
    text = json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)
    # JSON itself escapes only the control characters below the space.
    _write(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))


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

    _tell_people(Text.assemble(("error: ", "bold red"), readable(text, keep_colours=False)))


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
    from rich.segment import Segment

    class PipedConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(readable(text, keep_colours=False), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else readable(text, keep_colours=False), style, control)

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
