"""Options that many commands share, and the client they lead to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.wire.units import parse_duration_s

if TYPE_CHECKING:
    from rubato.client import Client

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Address of the service. Default: RUBATO_URL, else the one `rubato up` started."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
ProjectOption = Annotated[str, typer.Option("--project", help="Which project.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of a job, or the name of the newest one of that name.")
]


def connect(url: str | None) -> Client:
    """A client for the service that the options and the environment name."""
    from rubato.client import Client

    return Client(url)


def parse_assignments(pairs: list[str], option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict.

    Raises:
        typer.BadParameter: a pair without `=`.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def parse_since(text: str | None, now: datetime) -> datetime | None:
    """`"5m"` as that long ago, or an RFC 3339 time.

    Raises:
        typer.BadParameter: neither.
    """
    if text is None:
        return None
    try:
        return now - timedelta(seconds=parse_duration_s(text))
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text).astimezone()  # without an offset: local time, as in the user's other logs
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time; write how long ago (90s, 5m, 2h) or a time such as 2026-01-31T12:00:00Z",
            param_hint="--since",
        ) from None


def parse_ranks(text: str | None) -> tuple[int, ...]:
    """`"0,3"` as numbers.

    Raises:
        typer.BadParameter: something else.
    """
    if not text:
        return ()
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of ranks such as 0,3", param_hint="--rank")
    return tuple(int(part) for part in parts)
