"""Commands on jobs: ps, get, logs, scale, pause, resume, cancel, checkpoint, wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.cli.exits import ExitCode, code_for_status
from rubato.cli.follow import (
    PlainProgress,
    describe_wish,
    gap_listener,
    is_laid_aside,
    last_position,
    wait_for_status,
    wait_for_workers,
)
from rubato.cli.live import Picture, WatchOption, show
from rubato.cli.local_runs import TAIL, local_runs, source_of
from rubato.cli.options import (
    SINCE,
    UNFINISHED,
    JobOrRunArgument,
    JsonOption,
    ResumableArgument,
    TimeoutOption,
    UnfinishedArgument,
    UrlOption,
    connect,
    is_local_run,
    parse_assignments,
    parse_ranks,
    parse_since,
    parse_statuses,
    read_timeout,
    timeout_of_wait,
)
from rubato.cli.output import note, put, put_json, stdout_console, tell, terminal_columns
from rubato.cli.render import describe_job, format_log_line, job_table, say_status, worker_table
from rubato.wire.units import plural

if TYPE_CHECKING:
    from rubato.cli.local_runs import Source
    from rubato.client import Job


def ps(
    *,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Finished jobs too.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Only in this status, finished ones too; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Only where the name holds this.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only submitted since then: {SINCE}")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 50,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="Only with this label; repeatable.")
    ] = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="The `rubato run`s of this machine instead, finished ones too.")
    ] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List jobs, newest first."""
    show_all = show_all or runs
    labels = parse_assignments(label or [], "--label")
    statuses = parse_statuses(status or [], "--status") or (() if show_all else UNFINISHED)
    begin = parse_since(since, datetime.now(UTC))
    what = "run" if runs else "job"
    is_narrowed = bool(status or name or begin or project or labels)
    with local_runs() if runs else connect(url) as client:

        def jobs() -> list[Job]:
            found = client.jobs(
                status=statuses,
                text=name,
                limit=limit,
                project=project,
                labels=labels,
                created_after=begin.isoformat() if begin else None,
            )
            return list(found)

        def take() -> Picture:
            if found := jobs():
                return Picture([job_table(found, datetime.now(UTC), terminal_columns())], _sizes(found) if runs else [])
            if show_all or status:
                return Picture([], [f"No {what} matches." if is_narrowed else f"No {what}s."])
            none = "No unfinished job matches" if is_narrowed else "No unfinished jobs"
            return Picture([], [f"{none}; `rubato ps -a` lists finished ones."])

        if as_json:
            put_json([job.raw for job in jobs()])
        else:
            show(take, watch=watch)


def _sizes(runs: list[Job]) -> list[str]:
    size = sum(int(one.raw["bytes"]) for one in runs)
    return [f"They take {size / 1e6:.1f} MB; `rubato delete run_...` removes one that is over."]


def get(job: JobOrRunArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one job: status and why, progress, result or failure."""
    with source_of(job, url) as client:
        found = client.job(job)
        if as_json:
            put_json(found.raw)
            return
        lines = describe_job(found, datetime.now(UTC))
        lines += [(title, found.raw[title]) for title in ("folder", "checkpoints") if is_local_run(job)]
        width = max(len(title) for title, _ in lines)
        for title, value in lines:
            put(f"{title:<{width}}  {value}")
        workers = client.workers(found.id) if not found.is_final else []
        if workers:
            put("")
            stdout_console().print(worker_table(workers, terminal_columns()), soft_wrap=True)


def logs(
    job: JobOrRunArgument,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as lines are written. Ctrl-C detaches.")
    ] = False,
    rank: Annotated[str | None, typer.Option(metavar="0,3", help="Only these ranks.")] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, show_default="100, with --since all", help="Begin with so many of the newest lines."
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Begin with the first line.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only what is newer: {SINCE}")] = None,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt.")] = None,
    text: Annotated[str | None, typer.Option("--grep", help="Only lines that hold this text.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print what the training processes wrote, with its rank.

    With -f until the job ends; Ctrl-C detaches with exit code 101, and the job goes on.
    """
    if whole and tail is not None:
        raise typer.BadParameter("takes no --tail: it begins with the first line", param_hint="--all")
    only: dict[str, Any] = {
        "ranks": parse_ranks(rank),
        "attempt": attempt,
        "text": text,
        "since": parse_since(since, datetime.now(UTC)),
    }
    with source_of(job, url) as client:
        if not follow:
            is_filtered = any(only.values())
            listen = _tell_search if is_filtered else None
            lines = client.whole_log(job, **only) if whole else client.logs(job, tail=tail, on_search=listen, **only)
            count = 0
            for line in lines:
                count += 1
                put_json(line.raw) if as_json else put(format_log_line(line))
            if count == 0:
                none = f"No line matches.{_writers(client, job) if only['ranks'] else ''}"
                note(none if is_filtered else "The training processes have written nothing yet.")
            elif count == TAIL and not (whole or tail or since or sys.stdout.isatty()):
                note(f"These are the newest {TAIL} lines; --all prints every one.")
            return
        found = client.job(job)
        try:
            for line in client.follow_logs(
                found.id, tail=tail, whole=whole, on_gap=gap_listener(PlainProgress()), **only
            ):
                put_json(line.raw) if as_json else put(format_log_line(line))
        except KeyboardInterrupt:
            note(f"Detached; the job goes on. Come back with `rubato logs {job} -f`.")
            raise typer.Exit(ExitCode.NOT_FINISHED) from None
        ended = client.job(found.id)
        note(f"{say_status(ended)}{f': {ended.message}' if ended.message else ''}")


def _writers(client: Source, job: str) -> str:
    """Who wrote the newest lines, for whom a rank was misnamed."""
    ranks = sorted({line.rank for line in client.logs(job) if line.rank is not None})
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f" The newest lines are of {noun} {', '.join(map(str, ranks))}." if ranks else ""


def _tell_search(part: float) -> None:
    note(f"Looked through {part:.0%} of the log; going on.")


def scale(
    job: UnfinishedArgument,
    workers: Annotated[int, typer.Argument(min=1, metavar="WORKERS", help="How many workers.")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Show the change until the new generation has formed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask where it restarts the job (Ray Train).")] = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Change the number of workers while the job trains."""
    timeout_s = timeout_of_wait(timeout, wait=wait)
    with source_of(job, url) as client:
        found = client.job(job)
        is_restart = found.scaling_restarts and workers != found.desired_workers
        if is_restart and not yes and sys.stdin.isatty():
            what = f"{found.name} is a Ray Train job: another number of workers restarts it from its newest checkpoint."
            typer.confirm(f"{what} Go on?", abort=True, err=True)
        after = last_position(client, found.id) if wait else 0
        wished = client.scale(job, workers)  # as it was named: the service refuses what several projects share
        code = ExitCode.OK
        if is_restart:
            note(wished.message or "")
        if wished.desired_workers == found.desired_workers and wished.workers == workers:
            note(f"{wished.name} has {workers} workers already.")
        elif wait:
            code = wait_for_workers(client, wished, after=after, timeout_s=timeout_s)
        elif is_laid_aside(wished):
            note(describe_wish(wished, workers))
        else:
            asked = plural(workers, "worker")
            note(f"Asked for {asked}; `rubato scale {job} {workers} --wait` shows the change.")
        if as_json:
            put_json(client.job(wished.id).raw)
        raise typer.Exit(code)


def _change(
    url: str | None,
    job: str,
    change: Callable[[Source, str], Job],
    *,
    until: tuple[str, ...],
    wait: bool,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Ask for a change, wait for a status where that is wished, and print the job."""
    timeout_s = timeout_of_wait(timeout, wait=wait)
    with source_of(job, url) as client:
        changed = change(client, job)
        if wait:
            changed = wait_for_status(client, changed.id, until, timeout_s)
        if as_json:
            put_json(changed.raw)
        else:
            note(f"{say_status(changed)}{f': {changed.message}' if changed.message else ''}")
        if wait and changed.status not in until:
            raise typer.Exit(code_for_status(changed.status, until))


def pause(
    job: UnfinishedArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Wait neither for a checkpoint nor for a cluster that is gone.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is paused.")] = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Checkpoint a job and free its slots. `rubato resume` goes on from there."""
    _change(
        url,
        job,
        lambda client, name: client.pause(name, force=force),
        until=("paused",),
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )


def resume(
    job: ResumableArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it trains.")] = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Queue a paused job again."""
    until = ("running", "succeeded")
    _change(
        url, job, lambda client, name: client.resume(name), until=until, wait=wait, timeout=timeout, as_json=as_json
    )


def cancel(
    job: UnfinishedArgument,
    *,
    force: Annotated[bool, typer.Option("--force", help="Do not wait for the grace.")] = False,
    grace: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long its workers may take: 10s, 5m. Default: limits.stop_grace."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until its processes are gone.")] = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """End a job."""
    grace_s = read_timeout(grace, "--grace")
    _change(
        url,
        job,
        lambda client, name: client.cancel(name, force=force, grace_s=grace_s),
        until=("cancelled",),
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )


def checkpoint(job: UnfinishedArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Ask a job for a checkpoint now."""
    with source_of(job, url) as client:
        asked = client.checkpoint(job)
    tell(asked.raw, f"Asked {asked.name} for a checkpoint; `rubato events {job} -f` tells of it.", as_json=as_json)


def wait(
    job: UnfinishedArgument,
    *,
    statuses: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="STATUS", help="Wait for this status; repeatable. Default: the end."),
    ] = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Wait for the end of a job, or for a status.

    Exit code: 0 as waited for, 100 failed, 103 cancelled, 101 not finished in time, 102 no such job.
    """
    wanted = parse_statuses(statuses or [], "--for")
    timeout_s = read_timeout(timeout)
    with source_of(job, url) as client:
        found = wait_for_status(client, client.job(job).id, wanted, timeout_s)
        if as_json:
            put_json(found.raw)
        else:
            put(found.status)
        code = code_for_status(found.status, wanted)
        if code == ExitCode.JOB_FAILED:
            cause = f": {found.message.splitlines()[0]}" if found.message else ""
            more = "get" if is_local_run(job) else "explain"
            note(f"{say_status(found)}{cause}\n  rubato {more} {job}   says more")
        elif code == ExitCode.NOT_FINISHED and timeout_s is not None and found.finished_at is None:
            note(f"{say_status(found)}: not {' or '.join(wanted) or 'ended'} within {timeout_s:g} s.")
        raise typer.Exit(code)
