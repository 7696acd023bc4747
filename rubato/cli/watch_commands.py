"""Commands that one watches: what happened to a job, `metrics` with a curve a line, `top` with what clusters train."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.cli.exits import ExitCode
from rubato.cli.follow import PlainProgress, gap_listener, sentence_of
from rubato.cli.live import Picture, WatchOption, show
from rubato.cli.local_runs import source_of
from rubato.cli.options import UNFINISHED, JobOrRunArgument, JsonOption, UrlOption, connect
from rubato.cli.output import note, put, put_json, stdout_console, terminal_columns
from rubato.cli.render import (
    USUAL,
    format_number,
    format_steps,
    format_time,
    format_workers,
    job_table,
    node_table,
    styled_status,
)
from rubato.errors import meant
from rubato.wire.events import EventKind

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from rubato.cli.local_runs import Source
    from rubato.client import Client, Cluster, Event, Job

_KIND_WIDTH = max(len(kind) for kind in EventKind)
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""Of a curve, in characters, where no terminal sets it."""
MAX_WIDTH = 60
SLOT_BAR = 20
CHART_POINTS = 2000
TOP_JOBS = 30
_LAST = ("samples_per_second", "step_seconds", "compute_seconds", "data_seconds", "samples", "epoch")
"""What is measured of every job comes after the loss and what the program logs."""


def events(
    job: JobOrRunArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen. Ctrl-C detaches.")] = False,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only of this kind, as `worker.lost`, or `worker`; repeatable."),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show what happened to a job, in order, and who asked for it.

    Scalings with their pauses, lost workers, checkpoints, changes by people and how it ended.
    With -f until the job ends; Ctrl-C detaches with exit code 101, and the job goes on.
    """
    for kind in kinds or ():
        _check_kind(kind)
    with source_of(job, url) as client:
        job_id = client.job(job).id
        found = client.follow_events(job_id, on_gap=gap_listener(PlainProgress())) if follow else client.events(job_id)
        is_any = False
        try:
            for event in found:
                if kinds and not any(_is_of(event.kind, kind) for kind in kinds):
                    continue
                is_any = True
                put_json(event.raw) if as_json else put(format_event(event))
        except KeyboardInterrupt:
            note(f"Detached; the job goes on. Come back with `rubato events {job} -f`.")
            raise typer.Exit(ExitCode.NOT_FINISHED) from None
        if not is_any:
            note(f"No event of kind {', '.join(kinds)}." if kinds else "Nothing has happened to it yet.")


def _is_of(kind: str, wanted: str) -> bool:
    """Whether it is this kind of event, or one of those that begin so: `worker` means `worker.lost`, too."""
    return f"{kind}.".startswith(f"{wanted}.")


def _check_kind(wanted: str) -> None:
    """Refuse a kind that no event has.

    Raises:
        typer.BadParameter: names the nearest kind, or all.
    """
    from rubato.launch.records import OUTCOME  # of a `rubato run`

    kinds = [*map(str, EventKind), OUTCOME]
    if not any(_is_of(kind, wanted) for kind in kinds):
        near = meant(wanted, {*kinds, *(kind.partition(".")[0] for kind in kinds)})
        advice = near or f"; there are: {', '.join(sorted(kinds))}"
        raise typer.BadParameter(f"{wanted!r} is no kind of event{advice}", param_hint="--kind")


def format_event(event: Event) -> str:
    """`2026-01-31 12:00:00  worker.lost               step 12      w1.2 was killed by SIGKILL.`, in local time."""
    step = "" if event.step is None else f"step {event.step}"
    return f"{format_time(event.time)}  {event.kind:<{_KIND_WIDTH}}  {step:<10}  {sentence_of(event)}"


def metrics(
    job: JobOrRunArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.")] = None,
    *,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show a job's metrics: curve, last, least and greatest value."""
    wanted = tuple(names or ())
    with source_of(job, url) as client:
        if as_json:
            put_json(client.chart(client.job(job).id, names=wanted, max_points=CHART_POINTS))
        else:
            job_id = client.job(job).id  # a name may mean another job by and by
            show(lambda: _metrics_of(client, job_id, wanted), watch=watch)


def _metrics_of(client: Source, job_id: str, wanted: tuple[str, ...]) -> Picture:
    found = client.job(job_id)
    chart = client.chart(found.id, names=wanted, max_points=CHART_POINTS)
    missing = [name for name in wanted if name not in chart]
    remarks = [f"{found.name} has logged no {name} yet{_nearest(name, found)}" for name in missing]
    if not chart and not wanted:
        remarks.append("It has committed no step yet.")
    parts: list[RenderableType] = [_headline(found)]
    if chart:
        parts.append(metric_table(chart, terminal_columns(), found.metrics or {}))
    return Picture(parts, remarks, is_last=found.is_final or found.finished_at is not None)


def _nearest(name: str, job: Job) -> str:
    """The metric that was meant, or those that there are."""
    known = sorted(job.metrics or {})
    return meant(name, known) or (f"; it has {', '.join(known)}." if known else ".")


def _headline(job: Job) -> Text:
    from rich.text import Text

    return Text.assemble(
        (job.name, "bold"),
        "  ",
        styled_status(job.status),
        f"  step {format_steps(job)}  workers {format_workers(job)}",
    )


def top(
    *,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--once", "-w", help="Again every 2 seconds, until Ctrl-C. Default: on a terminal."),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show clusters, nodes, and the jobs that train or wait. It is live on a terminal."""
    with connect(url) as client:
        if as_json:
            jobs = client.jobs(status=UNFINISHED, limit=TOP_JOBS)
            put_json({"clusters": [one.raw for one in client.clusters()], "jobs": [one.raw for one in jobs]})
        else:
            show(lambda: _top_of(client), watch=stdout_console().is_terminal if watch is None else watch)


def _top_of(client: Client) -> Picture:
    clusters = client.clusters()
    jobs = list(client.jobs(status=UNFINISHED, limit=TOP_JOBS))
    parts: list[RenderableType] = []
    remarks = []
    for cluster in clusters:
        parts.append(_cluster_line(cluster))
        nodes = client.operations.nodes(cluster.id)
        parts += [node_table(nodes, terminal_columns())] if nodes else []
    if not clusters:
        remarks.append("No cluster has reported yet; `rubato doctor` says what is missing.")
    if jobs:
        parts += ["", job_table(jobs, datetime.now(UTC), terminal_columns())]
        waiting = itertools.islice(client.queue(), TOP_JOBS)
        parts += [f"{standing.name} waits: {standing.because}" for standing in waiting]
    else:
        remarks.append("No unfinished jobs.")
    return Picture(parts, remarks)


def _cluster_line(cluster: Cluster) -> Text:
    from rich.text import Text

    used, total = cluster.slots_used, cluster.slots_total
    filled = round(used / total * SLOT_BAR) if total else 0
    line = Text.assemble(("cluster ", ""), (cluster.id, "bold"), f": {cluster.status}, ")
    line.append(f"{used:g} of {total:g} slots in use")
    if (terminal_columns() or 0) >= USUAL:
        line.append("  " + "━" * filled, style="green")
        line.append("━" * (SLOT_BAR - filled), style="dim")
    return line


def metric_table(
    chart: dict[str, dict[str, list[float]]],
    columns: int | None = None,
    newest: Mapping[str, float | None] = MappingProxyType({}),
) -> Table:
    """A line a metric: name, curve, last, least and greatest value.

    Args:
        chart: `x` and `y` of each metric; of one thinned out, `means` and `weights`, too.
        columns: width of the terminal; on a narrow one least and greatest are left out. None: there is none.
        newest: values of the last step, of which a chart that is thinned out may have none.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    is_narrow = columns is not None and columns < USUAL
    titles = ("METRIC", "CURVE", "LAST") if is_narrow else ("METRIC", "CURVE", "LAST", "LEAST", "GREATEST")
    for title in titles:
        table.add_column(title, no_wrap=True, justify="left" if title in ("METRIC", "CURVE") else "right")
    longest = max(map(len, chart), default=0)
    # Each of the others needs a number such as -1.234e-05, and a blank beside it.
    width = WIDTH if columns is None else max(8, min(MAX_WIDTH, columns - longest - 12 * (len(titles) - 2) - 2))
    for name in sorted(chart, key=_place):
        known = [value for value in chart[name]["y"] if value is not None]
        if not known:
            table.add_row(name, "", "not finite", *("-",) * (len(titles) - 3))
            continue
        told = newest.get(name)
        values = (known[-1] if told is None else told, min(known), max(known))[: len(titles) - 2]
        drawn = curve(chart[name].get("means", known), width, chart[name].get("weights"))
        table.add_row(name, drawn, *(format_number(float(one)) for one in values))
    return table


def _place(name: str) -> tuple[int, str]:
    return (0 if name == "loss" else 2 + _LAST.index(name) if name in _LAST else 1), name


def curve(values: Sequence[float], width: int = WIDTH, weights: Sequence[float] | None = None) -> str:
    """A curve in one line of text, the mean of as many values in each of at most `width` characters.

    Args:
        values: in order.
        width: of the text, > 0.
        weights: of each value in a mean; None: all the same.
    """
    weights = weights or [1.0] * len(values)
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)] if count else []
    weighted = [value * weight for value, weight in zip(values, weights, strict=True)]
    means = [sum(weighted[a:b]) / sum(weights[a:b]) for a, b in itertools.pairwise(cuts)]
    if not means:
        return ""
    least, spread = min(means), max(means) - min(means)
    if spread == 0:
        return BARS[3] * count
    return "".join(BARS[min(len(BARS) - 1, int((mean - least) / spread * len(BARS)))] for mean in means)
