"""`rubato explain`: why a job waits, why it has so many workers, or why it ended."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from rubato.cli.options import JobArgument, JsonOption, UrlOption, connect
from rubato.cli.output import put, put_json, stdout_console
from rubato.cli.render import describe_failure, format_age, format_pause
from rubato.wire.status import FINAL, Status

if TYPE_CHECKING:
    from rich.table import Table

    from rubato.client import Explanation, Standing

SHOWN = 10
"""So many jobs in front of this one are listed."""


def explain(job: JobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Say why a job waits, or why it has so many workers, in the scheduler's words; or why it ended."""
    with connect(url) as client:
        found = client.explain(job)
        if as_json:
            put_json(found.raw)
            return
        for line in describe(found, datetime.now(UTC)):
            stdout_console().print(line, markup=False, highlight=False)  # broken between words on a terminal
        if found.status in FINAL:
            for title, value in describe_failure(client.job(found.job_id).failure or {}):
                put(f"  {title}: {value}")
            return
        is_queued = found.status == Status.QUEUED
        # Places count the jobs of all projects; those that this user does not see are not listed.
        ahead = takewhile(lambda one: (one.position or 0) < (found.position or 0), client.queue() if is_queued else ())
        before = list(islice(ahead, SHOWN))
        holders = [one for one in client.placed() if one.job_id != found.job_id] if is_short(found) else []
        for title, rows in (("Before it in the queue", before), ("Who holds slots", holders)):
            if rows:
                put("")
                put(f"{title}:")
                stdout_console().print(standing_table(rows), soft_wrap=True)


def is_short(found: Explanation) -> bool:
    """Whether it waits for slots that others hold."""
    return found.status == Status.QUEUED or found.granted_workers < found.desired_workers


def describe(found: Explanation, now: datetime) -> list[str]:
    """The sentence, and the figures behind it."""
    status = found.status + (f" ({found.reason})" if found.reason else "")
    lines = [f"{found.name} is {status}: {found.because}" if found.because else f"{found.name} is {status}"]
    if found.status == Status.QUEUED:
        lines.append(
            f"  position {found.position or 'not known yet'}, priority {found.priority}, "
            f"waiting for {format_age(found.queued_at, now)}, "
            f"needs {found.min_workers} to start, wants {found.desired_workers}"
        )
    elif found.status not in FINAL:
        spares = f" and {found.granted_standby} spare" if found.granted_standby else ""
        lines.append(
            f"  wants {found.desired_workers}, granted {found.granted_workers}{spares}, training {found.workers}, "
            f"may have {found.min_workers} to {found.max_workers}, autoscale {found.autoscale}, "
            f"priority {found.priority}"
        )
    if found.deadline_at and found.status not in FINAL:
        limit = "limits.queue_timeout" if found.status == Status.QUEUED else "limits.max_duration"
        lines.append(f"  ends at {found.deadline_at} ({limit})")
    if found.pause_seconds is not None:
        lines.append(f"  a change of its workers pauses the training for {format_pause(found.pause_seconds)}")
    if found.rates:
        measured = sorted((int(count), rate) for count, rate in found.rates.items())
        lines.append("  measured: " + ", ".join(f"{rate:.4g} samples/s with {count}" for count, rate in measured))
    return lines


def standing_table(rows: list[Standing]) -> Table:
    """Other jobs, with the scheduler's sentence on each."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "NAME", "STATUS", "PRIORITY", "SLOTS", "WHY"):
        table.add_column(title, justify="right" if title in ("", "PRIORITY", "SLOTS") else "left")
    for row in rows:
        slots = row.min_workers if row.position else row.granted_workers + row.granted_standby
        cells = ("" if row.position is None else str(row.position), row.name, row.status, str(row.priority), str(slots))
        table.add_row(*map(Text, (*cells, row.because)))
    return table
