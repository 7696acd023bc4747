"""Options that many commands share, and the client they lead to."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.errors import ApiError, RubatoError, ServiceUnreachable, UserError
from rubato.home import Home, complete_url
from rubato.wire.status import FINAL, Status
from rubato.wire.units import parse_duration_s

if TYPE_CHECKING:
    from rubato.client import Client

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the service. "
        "Default: RUBATO_URL, else that of `rubato login`, else the one `rubato up` started.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", help="A program that ships with Rubato, such as image-classifier, instead of FILE."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Samples in one optimizer step (batch.global_size).")
]
MicrobatchesOption = Annotated[
    int | None,
    typer.Option("--num-microbatches", min=1, help="Microbatches a step is cut into (batch.num_microbatches)."),
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Of the sample order and every random number.")]
ProjectOption = Annotated[str, typer.Option("--project", help="Which project.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer than that: 90, 5m.")
]
SINCE = "5m, 2h, or a time: 2026-01-31 12:00 is local, as `rubato events` shows it, 2026-01-31T12:00:00Z is UTC."
KNOWN_JOBS = 200
"""So many of the newest jobs are looked through for a name that is like the one that was typed."""

UNFINISHED = tuple(str(status) for status in Status if status not in FINAL)
ENDED = tuple(str(status) for status in Status if status in FINAL)
RESUMABLE = (str(Status.PAUSING), str(Status.PAUSED))

_LOCAL_RUN = re.compile(r"run_[0-9a-f]{14}")


def is_local_run(reference: str) -> bool:
    """Whether it is the id of a `rubato run`; a job may well be called run_something."""
    return _LOCAL_RUN.fullmatch(reference) is not None


def complete_jobs(incomplete: str, statuses: tuple[str, ...] = ()) -> list[str]:
    """Names of jobs in these statuses for the shell's completion; none where the service does not answer at once."""
    from rubato.client import Client

    try:
        with Client() as client:
            found = client.jobs(status=statuses, text=incomplete or None, limit=KNOWN_JOBS)
            names = [job.name for job in islice(found, KNOWN_JOBS)]
    except RubatoError:
        return []
    return sorted({name for name in names if name.startswith(incomplete)})


def complete_jobs_and_runs(incomplete: str, statuses: tuple[str, ...] = ()) -> list[str]:
    """The same, or ids of the `rubato run`s of this machine where it begins as one."""
    from rubato.cli.local_runs import local_runs

    if not incomplete.startswith("run_"):
        return complete_jobs(incomplete, statuses)
    with local_runs() as runs:
        ended = set(statuses) <= set(ENDED)
        return [
            run.id
            for run in runs.jobs()
            if run.id.startswith(incomplete) and (not statuses or (run.finished_at is not None) == ended)
        ]


def completes(statuses: tuple[str, ...], *, runs: bool = False) -> Callable[[str], list[str]]:
    """A completion that offers only the jobs on which a command can act, and with `runs` such `rubato run`s."""

    def complete(incomplete: str) -> list[str]:
        return (complete_jobs_and_runs if runs else complete_jobs)(incomplete, statuses)

    return complete


def refuse_local_run(job: str) -> str:
    """The same, where it is no `rubato run`.

    Raises:
        UserError: it is one.
    """
    if is_local_run(job):
        raise UserError(
            f"{job} is a run of `rubato run`, which no service knows: get, events, metrics, logs, wait, scale, pause, "
            "cancel, checkpoint, export and delete take it"
        )
    return job


def job_argument(statuses: tuple[str, ...] = (), *, tells_of_runs: bool = False) -> Any:
    """The argument of a command on jobs in these statuses (none: in any).

    Args:
        statuses: of the jobs that it can act on.
        tells_of_runs: the command itself says what is to be done with a `rubato run` instead.
    """
    return typer.Argument(
        metavar="JOB",
        help="Id of a job, or the name of the newest one of that name.",
        autocompletion=completes(statuses),
        callback=None if tells_of_runs else refuse_local_run,
    )


def job_or_run_argument(statuses: tuple[str, ...] = ()) -> Any:
    """The same, of one that takes `rubato run`s, too."""
    return typer.Argument(
        metavar="JOB",
        help="Id of a job, or the name of the newest one of that name; or run_... of a `rubato run`.",
        autocompletion=completes(statuses, runs=True),
    )


JobArgument = Annotated[str, job_argument()]
UnfinishedJobArgument = Annotated[str, job_argument(UNFINISHED)]
JobOrRunArgument = Annotated[str, job_or_run_argument()]
UnfinishedArgument = Annotated[str, job_or_run_argument(UNFINISHED)]
ResumableArgument = Annotated[str, job_argument(RESUMABLE, tells_of_runs=True)]
EndedArgument = Annotated[str, job_or_run_argument(ENDED)]


@contextlib.contextmanager
def connect(url: str | None) -> Iterator[Client]:
    """A client for the service that the options, the environment or `rubato login` name.

    Raises:
        ApiError: the service refuses it; of a job that is not there with the names that are like it, and of a project
            with what makes it.
        ServiceUnreachable: nothing answers; where a keeper of this machine is about to start it, with that.
    """
    from rubato.client import Client

    with Client(url) as client:
        try:
            yield client
        except ApiError as error:
            advice = _advice_on(client, str(error))
            if not advice:
                raise
            raise type(error)(f"{error}{advice}", status=error.status, problem=error.problem) from error
        except ServiceUnreachable as error:
            if not _is_started_again(client.url, error):
                raise
            raise ServiceUnreachable(
                f"nothing answers at {client.url}; the keeper on this machine lives and starts the service again: try "
                "again in some seconds, and see `rubato doctor` where that does not help"
            ) from error


def _is_started_again(url: str, error: ServiceUnreachable) -> bool:
    """Whether the service at this address is gone, and is one that a living keeper of this machine looks after."""
    import httpx

    from rubato.cli.keeper.daemon import is_held

    home = Home.from_environment()
    record = home.read_record()
    is_gone = isinstance(error.__cause__, httpx.NetworkError | httpx.RemoteProtocolError)
    return is_gone and record is not None and complete_url(record.url) == url and is_held(home)


def _advice_on(client: Client, message: str) -> str:
    if missing := re.search("there is no project '([a-z0-9._-]+)'", message):
        return f"\n  `rubato project add {missing[1]}` makes it"
    similar = _similar_jobs(client, message)
    return f" Did you mean {' or '.join(similar)}?" if similar else ""


def _similar_jobs(client: Client, message: str) -> list[str]:
    wanted = re.search(r"There is no job '(.+)'", message)
    if wanted is None or wanted[1].startswith("job_"):
        return []
    with contextlib.suppress(RubatoError):
        names = {job.name for job in client.jobs(limit=KNOWN_JOBS)}
        return difflib.get_close_matches(wanted[1], sorted(names), n=3)
    return []


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


def settings_of(
    pairs: list[str] | None, *, batch: int | None, num_microbatches: int | None, seed: int | None
) -> dict[str, str]:
    """What `--set` and the options for single fields say, by path; `--set` wins.

    Raises:
        typer.BadParameter: a pair without `=`.
    """
    flags = {"batch.global_size": batch, "batch.num_microbatches": num_microbatches, "seed": seed}
    return {path: str(value) for path, value in flags.items() if value is not None} | parse_assignments(
        pairs or [], "--set"
    )


def parse_since(text: str | None, now: datetime) -> datetime | None:
    """`"5m"` as that long ago, or a time; without an offset a local one, as those that are printed.

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
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time; write how long ago (90s, 5m, 2h) or a time such as 2026-01-31 12:00 (local) or "
            "2026-01-31T12:00:00Z",
            param_hint="--since",
        ) from None


def read_timeout(text: str | None, option: str = "--timeout") -> float | None:
    """Seconds of an option that takes a time.

    Raises:
        typer.BadParameter: it is no duration.
    """
    try:
        return None if text is None else parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def timeout_of_wait(text: str | None, *, wait: bool) -> float | None:
    """The seconds of `--timeout` where only `--wait` waits.

    Raises:
        typer.BadParameter: it is no duration, or nothing waits.
    """
    if text is not None and not wait:
        raise typer.BadParameter("needs --wait", param_hint="--timeout")
    return read_timeout(text)


def parse_statuses(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """`["paused", "failed,cancelled"]` as statuses.

    Raises:
        typer.BadParameter: one that no job can have.
    """
    wanted = tuple(part.strip() for text in texts for part in text.split(","))
    known = [str(status) for status in Status]
    for status in wanted:
        if status not in known:
            raise typer.BadParameter(f"{status!r} is no status; one of {', '.join(known)}", param_hint=option)
    return wanted


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
