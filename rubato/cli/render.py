"""Jobs, workers and log lines as text for people. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rubato.wire.units import format_pause, to_size

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table
    from rich.text import Text

    from rubato.client import Checkpoint, Event, Explanation, Job, LogLine, Worker

STATUS_STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "failed": "bold red",
    "recovering": "yellow",
    "starting": "cyan",
    "queued": "cyan",
    "cancelled": "dim",
    "paused": "magenta",
}

NODE_ID_WIDTH = 12
"""So much of a node's id tells it from all others."""
MIN_NAME_WIDTH = 8
"""Columns of a terminal that a job's name gets at least; the longer ones are folded."""
WIDE = 100
"""Columns of a terminal from which on all columns of a table have room."""
USUAL = 80
MAX_PLAIN = 1e9
"""Numbers below are written without an exponent."""
WIDER = 120
"""Columns from which on workers are shown with what they use."""


def format_age(since: str | None, now: datetime) -> str:
    """`3m`, `2h`, `5d` since an RFC 3339 time."""
    if not since:
        return "-"
    seconds = max(0.0, (now - datetime.fromisoformat(since).astimezone(UTC)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def format_time(time: str) -> str:
    """`2026-01-31 12:00:00` in local time, as the page shows it and `--since` reads it, of an RFC 3339 time."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"


def format_workers(job: Job) -> str:
    """`2`, or `1/3` where 3 are wanted; `-` when it is over."""
    if job.is_final:
        return "-"
    return str(job.workers) if job.workers == job.desired_workers else f"{job.workers}/{job.desired_workers}"


def format_steps(job: Job) -> str:
    """`120/500`, or `120` where the total is not known yet."""
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def format_number(value: Any) -> str:
    """Four significant digits, and every one before the point; `-` for nothing."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < MAX_PLAIN else f"{value:.4g}"


def styled_status(status: str) -> Text:
    """A status in its colour."""
    from rich.text import Text

    return Text(status, style=STATUS_STYLES.get(status, ""))


def format_status(job: Job) -> str:
    """`running (training)`; `queued (unschedulable)` where there is a reason."""
    said = [word for word in (job.phase if not job.is_final else None, job.reason) if word]
    return f"{job.status} ({', '.join(said)})" if said else job.status


def say_status(job: Job | Explanation) -> str:
    """`digits is running`, `digits succeeded`, `digits was cancelled`."""
    verb = {"succeeded": "", "failed": "", "cancelled": "was "}.get(job.status, "is ")
    return f"{job.name} {verb}{job.status}"


def job_table(jobs: list[Job], now: datetime, columns: int | None = None) -> Table:
    """`rubato ps`.

    Args:
        jobs: a row each.
        now: what ages count from.
        columns: width of the terminal. Reasons stand below statuses; on a narrow one ids below names; on a very
            narrow one there are no reasons, and the step is a percentage. None: there is none, and each has a column.
    """
    from rich.table import Table
    from rich.text import Text

    is_narrow = columns is not None and columns < WIDE
    is_tiny = columns is not None and columns < USUAL
    titles = ["ID", "NAME", "STATUS", "WORKERS", "STEP", "LOSS", "AGE"]
    if is_narrow:
        titles = ["NAME", "STATUS", "WORKERS", "DONE"] if is_tiny else titles[1:]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        # The name may take more lines; half an id would be of no use.
        is_name = title == "NAME"
        is_number = title in ("WORKERS", "STEP", "LOSS", "DONE")
        least = 0 if not is_name else max((len(job.id) for job in jobs), default=0) if is_narrow else MIN_NAME_WIDTH
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(title, justify=justify, no_wrap=not is_name, overflow="fold", min_width=least)
    below = " " if columns is None else "\n"
    for job in jobs:
        has_reason = bool(job.reason) and not is_tiny
        cells = {
            "ID": Text(job.id),
            "NAME": Text.assemble(job.name, ("\n" + job.id, "dim")) if is_narrow else Text(job.name),
            "STATUS": styled_status(job.status).append(f"{below}({job.reason})" if has_reason else "", "dim"),
            "WORKERS": Text(format_workers(job)),
            "STEP": Text(format_steps(job)),
            "DONE": Text(f"{job.step / job.total_steps:.0%}" if job.total_steps else "-"),
            "LOSS": Text(format_number((job.metrics or {}).get("loss"))),
            "AGE": Text(format_age(job.created_at, now)),
        }
        table.add_row(*(cells[title] for title in titles))
    return table


def describe_job(job: Job, now: datetime) -> list[tuple[str, str]]:
    """`rubato get`: titles and values."""
    wished = f"{job.desired_workers} {'was' if job.desired_workers == 1 else 'were'} wanted"
    wanted = f"none any more; {wished}" if job.is_final else f"{job.workers} of {job.desired_workers} wanted"
    lines = [
        ("id", job.id),
        ("name", job.name),
        ("status", format_status(job)),
        ("workers", f"{wanted}, {job.min_workers} to {job.max_workers} allowed"),
        ("step", format_steps(job)),
        ("restarts", str(job.restarts)),
        ("scalings", str(job.scalings)),
        ("created", f"{job.created_at} ({format_age(job.created_at, now)} ago)" if job.created_at else "-"),
    ]
    if job.message:
        lines.insert(3, ("why", job.message))
    if job.scaling_restarts:
        lines.append(("backend", "ray_train: scaling restarts the job from its newest checkpoint"))
    if job.joining:
        lines.insert(4, ("joining", str(job.joining)))
    if job.scheduling and not job.is_final and not job.queue:
        lines.insert(4, ("slots", job.scheduling))
    if job.queue:
        position, reason = job.queue.get("position"), str(job.queue.get("reason"))
        # Without a position the scheduler has not looked yet.
        lines.append(("queue", f"position {position}: {reason}" if position else reason))
    if job.log_lines_dropped or job.metric_rows_dropped:
        text = f"{job.log_lines_dropped} log lines and {job.metric_rows_dropped} metric rows, beyond the quota of a job"
        lines.append(("not stored", text))
    if job.dropped:
        lines.append(("too old", f"{', '.join(job.dropped)}: not kept so long"))
    lines += [(name, format_number(value)) for name, value in (job.metrics or {}).items()]
    if job.result:
        lines.append(("result step", str(job.result.get("step"))))
        if job.result.get("digest"):
            lines.append(("digest", str(job.result.get("digest"))))
    failure = job.failure or {}
    if failure.get("message") == job.message:
        failure = {**failure, "message": None}  # It stands above, as the reason of the status.
    return lines + describe_failure(failure)


_TITLES = {
    "failure_class": "failure class",
    "worker_id": "failure worker",
    "exit_code": "failure exit code",
    "advice": "what to do",
}


def describe_failure(failure: dict[str, Any]) -> list[tuple[str, str]]:
    """The failure record: what is known of it."""
    lines = []
    for key in (
        "failure_class",
        "reason",
        "message",
        "worker_id",
        "rank",
        "node",
        "exit_code",
        "signal",
        "step",
        "microbatch",
        "advice",
    ):
        if failure.get(key) is not None:
            lines.append((_TITLES.get(key, f"failure {key}"), str(failure[key])))
    if failure.get("traceback"):
        lines.append(("traceback", "\n" + str(failure["traceback"]).rstrip()))
    elif failure.get("last_output"):
        lines.append(("last output", "\n" + "\n".join(str(line) for line in failure["last_output"])))
    return lines


def worker_table(workers: list[Worker], columns: int | None = None) -> Table:
    """The workers of a job; on a narrow terminal without their share of the work, on a wide one with what they use."""
    from rich.table import Table

    titles = ["WORKER", "RANK", "STATE", "PHASE", "STEP", "MICROBATCHES", "EACH", "PID", "NODE"]
    if columns is None or columns >= WIDER:
        titles[7:7] = ["DEVICE", "MEMORY", "HEARD"]
    elif columns < USUAL:
        titles = ["WORKER", "RANK", "STATE", "STEP", "PID", "NODE"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for worker in workers:
        pace = worker.microbatch_seconds
        cells = {
            "WORKER": worker.worker_id,
            "RANK": worker.rank,
            "STATE": worker.state,
            "PHASE": worker.phase or None,
            "STEP": worker.step,
            "MICROBATCHES": worker.microbatches,
            "EACH": None if pace is None else format_pause(pace),
            "DEVICE": worker.device or None,
            "MEMORY": None if worker.memory_bytes is None else f"{worker.memory_bytes / 1e9:.2f} GB",
            "HEARD": None if worker.silent_seconds is None else f"{format_pause(worker.silent_seconds)} ago",
            "PID": worker.pid,
            "NODE": worker.node or None,
        }
        table.add_row(*("-" if cells[title] is None else str(cells[title]) for title in titles))
    return table


def node_table(nodes: list[dict[str, Any]], columns: int | None = None) -> Table:
    """The nodes of a cluster.

    Args:
        nodes: a row each.
        columns: width of the terminal. On a narrow one ids stand below hosts, and there is no memory; on a very narrow
            one the workers are left out, too, and the names of jobs take more lines. None: there is none.
    """
    from rich.table import Table
    from rich.text import Text

    is_narrow = columns is not None and columns < WIDE
    is_tiny = columns is not None and columns < USUAL
    titles = ["NODE", "HOST", "STATE", "CPU", "GPU", "MEMORY", "WORKERS", "JOBS"]
    if is_narrow:
        titles = [title for title in titles if title not in ("NODE", "MEMORY", "WORKERS" if is_tiny else "NODE")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        is_folded = title == "JOBS" or (title == "HOST" and is_narrow)
        least = NODE_ID_WIDTH if title == "HOST" and is_narrow else MIN_NAME_WIDTH if title == "JOBS" else 0
        table.add_column(title, no_wrap=not is_folded, overflow="fold", min_width=least)
    for node in nodes:
        node_id, host = node["node_id"][:NODE_ID_WIDTH], node["hostname"] or node["address"]
        accelerators = "" if is_narrow else f" {', '.join(node.get('accelerators', []))}"
        cells = {
            "NODE": Text(node_id),
            "HOST": Text.assemble(host, ("\n" + node_id, "dim")) if is_narrow else Text(host),
            "STATE": Text(node["state"]),
            "CPU": Text(f"{node['cpu_used']:g}/{node['cpu']:g}"),
            "GPU": Text(f"{node['gpu_used']:g}/{node['gpu']:g}{accelerators}" if node["gpu"] else "-"),
            "MEMORY": Text("-" if node.get("memory") is None else to_size(node["memory"])),
            "WORKERS": Text(str(node["workers_left"])),
            "JOBS": Text(", ".join(job["name"] for job in node["jobs"]) or "-"),
        }
        table.add_row(*(cells[title] for title in titles))
    return table


def checkpoint_table(checkpoints: list[Checkpoint]) -> Table:
    """The checkpoints of a job."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("ID", "STEP", "ATTEMPT", "SIZE", "PINNED", "CREATED"):
        table.add_column(title, no_wrap=True)
    pins = {True: "yes", False: "no", None: "?"}
    for one in checkpoints:
        size = "-" if one.bytes is None else f"{one.bytes / 1e6:.1f} MB"
        table.add_row(one.id, str(one.step), str(one.attempt), size, pins[one.pinned], one.created_at or "-")
    return table


def format_log_line(line: LogLine) -> str:
    """`[rank 0] text`; lines of the system and of joining workers name the worker."""
    source = line.worker_id if line.rank is None else f"rank {line.rank}"
    mark = "" if line.stream == "stdout" else f" {line.stream}"
    return f"[{source}{mark}] {line.line}"


def describe_generation(event: Event) -> str:
    """`2 → 4 workers at step 1204, paused 41 ms`, from a `generation.formed` event."""
    data = event.data
    before, after = data.get("from_workers"), data.get("workers")
    step = data.get("step", event.step)
    noun = "worker" if after == 1 else "workers"
    change = f"{before} → {after} {noun}" if before and before != after else f"{after} {noun}"
    paused = data.get("paused_seconds")
    ending = "" if paused is None else f", paused {format_pause(float(paused))}"
    return f"{change} at step {step}{ending}"
