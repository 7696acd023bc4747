"""Commands that one watches: `metrics` with a curve a line, `top` with the cluster and what it trains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rubato.cli.options import JobArgument, JsonOption, UrlOption, connect
from rubato.cli.output import note, put, put_json, stdout_console
from rubato.cli.render import format_number, format_steps, format_workers, job_table, node_table
from rubato.wire.status import FINAL, Status

if TYPE_CHECKING:
    from rich.table import Table

    from rubato.client import Client, Job

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show again every 2 seconds, until Ctrl-C.")]
UNFINISHED = tuple(str(status) for status in Status if status not in FINAL)
EVERY_S = 2.0
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""Of a curve, in characters."""
CHART_POINTS = 2000
TOP_JOBS = 30
_LAST = ("samples_per_second", "step_seconds", "compute_seconds", "data_seconds", "samples", "epoch")
"""What is measured of every job comes after the loss and what the program logs."""


def metrics(
    job: JobArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.")] = None,
    *,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show the metrics of a job: the whole curve, and the last, least and greatest value of each."""
    wanted = tuple(names or ())
    with connect(url) as client:
        for _ in rounds(watch=watch and not as_json):
            found = client.job(job)
            chart = client.chart(found.id, names=wanted, max_points=CHART_POINTS)
            if as_json:
                put_json(chart)
                return
            missing = [name for name in wanted if name not in chart]
            if missing:
                note(f"{found.name} has logged no {', '.join(missing)} yet.")
            put(f"{found.name}  {found.status}  step {format_steps(found)}  workers {format_workers(found)}")
            if chart:
                stdout_console().print(metric_table(chart), soft_wrap=True)
            elif not wanted:
                note("It has committed no step yet.")
            if found.is_final:
                return


def top(*, watch: WatchOption = False, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the clusters, their nodes, and the jobs that train or wait."""
    with connect(url) as client:
        for _ in rounds(watch=watch and not as_json):
            clusters = client.clusters()
            jobs = list(client.jobs(status=UNFINISHED, limit=TOP_JOBS))
            if as_json:
                put_json({"clusters": [one.raw for one in clusters], "jobs": [one.raw for one in jobs]})
                return
            for cluster in clusters:
                put(
                    f"cluster {cluster.id}: {cluster.status}, "
                    f"{cluster.slots_used:g} of {cluster.slots_total:g} slots in use"
                )
                nodes = client.operations.nodes(cluster.id)
                if nodes:
                    stdout_console().print(node_table(nodes), soft_wrap=True)
            if not clusters:
                note("No cluster has reported yet; `rubato doctor` says what is missing.")
            _put_jobs(client, jobs)


def _put_jobs(client: Client, jobs: list[Job]) -> None:
    put("")
    if not jobs:
        note("No unfinished jobs.")
        return
    stdout_console().print(job_table(jobs, datetime.now(UTC)), soft_wrap=True)
    for standing in itertools.islice(client.queue(), TOP_JOBS):
        put(f"{standing.name} waits: {standing.because}")


def rounds(*, watch: bool) -> Iterator[None]:
    """Once, or every two seconds on a cleared screen until Ctrl-C."""
    while True:
        if watch:
            stdout_console().clear()  # Does nothing where stdout is no terminal.
        yield
        if not watch:
            return
        try:
            time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return


def metric_table(chart: dict[str, dict[str, list[float]]]) -> Table:
    """A line a metric: name, curve, last, least and greatest value."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("METRIC", "CURVE", "LAST", "LEAST", "GREATEST"):
        table.add_column(title, no_wrap=True)
    for name in sorted(chart, key=_place):
        known = [value for value in chart[name]["y"] if value is not None]
        if not known:
            table.add_row(name, "", "not finite", "-", "-")
            continue
        table.add_row(name, curve(known), *(format_number(float(one)) for one in (known[-1], min(known), max(known))))
    return table


def _place(name: str) -> tuple[int, str]:
    return (0 if name == "loss" else 2 + _LAST.index(name) if name in _LAST else 1), name


def curve(values: Sequence[float], width: int = WIDTH) -> str:
    """A curve in one line of text, the mean of as many values in each of at most `width` characters."""
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    if not means:
        return ""
    least, spread = min(means), max(means) - min(means)
    if spread == 0:
        return BARS[3] * count
    return "".join(BARS[min(len(BARS) - 1, int((mean - least) / spread * len(BARS)))] for mean in means)
