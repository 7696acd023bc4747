"""`rubato explain`: why a job waits, why it has so many workers, what its microbatches cost, or why it ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from rubato.cli.options import JobArgument, JsonOption, UrlOption, connect
from rubato.cli.output import put, put_json, stdout_console
from rubato.cli.render import describe_failure, format_age, say_status
from rubato.errors import SpecError
from rubato.planner.taxonomy import cell_of
from rubato.wire.batch import ROOMY
from rubato.wire.spec import JobSpec, parse_spec
from rubato.wire.status import FINAL, Status
from rubato.wire.units import format_pause, plural

if TYPE_CHECKING:
    from rich.table import Table

    from rubato.client import Explanation, Standing

SHOWN = 10
"""So many jobs in front of this one are listed."""


def explain(job: JobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Say why a job waits, has so many workers, or ended.

    In the scheduler's words, with what its microbatches cost.
    """
    with connect(url) as client:
        found = client.explain(job)
        if as_json:
            put_json(found.raw)
            return
        for line in describe(found, datetime.now(UTC)):
            stdout_console().print(line, markup=False, highlight=False)  # broken between words on a terminal
        if found.status in FINAL:
            known = (found.reason, found.because)  # in the first line
            failure = client.job(found.job_id).failure or {}
            for title, value in describe_failure({key: value for key, value in failure.items() if value not in known}):
                put(f"  {title}: {value}")
            return
        workers = found.workers or found.granted_workers or found.min_workers
        for line in describe_batch(client.job(found.job_id).spec, workers):
            stdout_console().print(line, markup=False, highlight=False)
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
    status = say_status(found) + (f" ({found.reason})" if found.reason else "")
    lines = [f"{status}: {found.because}" if found.because else status]
    if found.status == Status.QUEUED:
        lines.append(
            f"  position {found.position or 'not known yet'}, priority {found.priority}, "
            f"waiting for {format_age(found.queued_at, now)}, "
            f"needs {found.min_workers} to start, wants {found.desired_workers}"
        )
    elif found.status not in FINAL:
        spares = f" and {found.granted_standby} spare" if found.granted_standby else ""
        coming = found.granted_workers - found.workers
        on_the_way = f" ({coming} on the way)" if coming > 0 else ""
        lines.append(
            f"  wants {found.desired_workers}, granted {found.granted_workers}{spares}, "
            f"training {found.workers}{on_the_way}, "
            f"may have {found.min_workers} to {found.max_workers}, autoscale {found.autoscale}, "
            f"priority {found.priority}"
        )
    if found.deadline_at and found.status not in FINAL:
        limit = "limits.queue_timeout" if found.status == Status.QUEUED else "limits.max_duration"
        lines.append(f"  ends at {found.deadline_at} ({limit})")
    if found.pause_seconds is not None and found.status not in FINAL:
        lines.append(f"  a change of its workers pauses the training for {format_pause(found.pause_seconds)}")
    if found.rates:
        measured = sorted((int(count), rate) for count, rate in found.rates.items())
        lines.append("  measured: " + ", ".join(f"{rate:.4g} samples/s with {count}" for count, rate in measured))
    return lines


def describe_batch(spec: dict[str, Any] | None, workers: int) -> list[str]:
    """How a step is cut, and what that costs, for a job as the service tells it; nothing where it is not understood."""
    try:
        parsed = parse_spec(spec)
    except SpecError:  # of a service of another release
        return []
    if parsed.backend == "ray_train":
        return ["  Ray Train runs it: another number of workers restarts it from its newest checkpoint"]
    total, count = parsed.batch.global_size, parsed.num_microbatches
    step = f"  a step is {total} samples in {plural(count, 'microbatch', 'microbatches')}"
    if parsed.local_updates.is_led:
        share = f"  a step is {total} samples in {plural(parsed.local_updates.sync_every, 'update')}"
        if parsed.local_updates.is_asynchronous:
            return [f"{share}, which one worker makes as gradients come from the others"]
        if parsed.local_updates.is_served:
            backups = parsed.local_updates.backups
            late = f", but for the slowest {backups}" if backups else ""
            return [f"{share}, which one worker makes, each when the gradients of the others are there{late}"]
        keepers = parsed.local_updates.keepers
        keep = "one worker computes" if keepers == 1 else f"{keepers} workers compute"
        return [f"{share}, of which {keep} {parsed.local_updates.cut}, the others all before it"]
    if parsed.local_updates.is_on:
        step += f", each of which makes {plural(parsed.local_updates.sync_every, 'update')} by itself"
    if not parsed.reproducible:
        share = f"{step}; each of {plural(workers, 'worker')} computes its share of them in one pass"
        return [share, *_describe_exchange(parsed)]
    sizes = f"{total // count}" + (f" or {total // count + 1}" if total % count else "")
    most = "at most " if count % workers else ""
    passes = plural(-(-count // workers), "pass", "passes")
    return [f"{step} of {sizes}: {most}{passes} a worker with {plural(workers, 'worker')}", f"  {_price(parsed)}"]


def _describe_exchange(spec: JobSpec) -> list[str]:
    """How gradients are exchanged, where the spec says so."""
    if spec.aggregation.is_default:
        return []
    cell = cell_of(spec)
    return [
        f"  gradients are exchanged as {spec.aggregation.name}: {cell.pattern} ({cell.gradients}, {cell.consistency})"
    ]


def _price(spec: JobSpec) -> str:
    """Why there are so many microbatches, and what to do where they are small."""
    total, count = spec.batch.global_size, spec.num_microbatches
    is_usual = count == replace(spec, batch=replace(spec.batch, num_microbatches="auto")).num_microbatches
    chosen = f"{count} is what `auto` chooses" if is_usual else f"{count} stays as it was submitted"
    counts = f"{spec.workers.min} to {spec.workers.upper} workers"
    if total >= count * ROOMY:
        reason = f"of the counts that leave {ROOMY} samples in each, the one that keeps {counts} busiest"
        return f"{chosen}: {reason}" if is_usual else chosen
    why = f"{chosen}, so that each of {counts} has one" if is_usual else chosen
    return (
        f"{why}: fewer than {ROOMY} samples in each use a core badly (256 samples in pieces of 16 took more than twice "
        "as long as in one); a larger batch.global_size or fewer microbatches cost less a sample, and change the result"
    )


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
