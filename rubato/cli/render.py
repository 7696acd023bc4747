"""Jobs, workers and log lines as text for people. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from rubato.client import Checkpoint, Event, Job, LogLine, Worker

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

MIN_NAME_WIDTH = 8
"""Columns of a terminal that a job's name gets at least; the longer ones are folded."""


def format_age(since: str | None, now: datetime) -> str:
    """`3m`, `2h`, `5d` since an RFC 3339 time."""
    if not since:
        return "-"
    seconds = max(0.0, (now - datetime.fromisoformat(since).astimezone(UTC)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def format_pause(seconds: float) -> str:
    """A pause with a unit that fits."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_workers(job: Job) -> str:
    """`2`, or `1/3` where 3 are wanted; `-` when it is over."""
    if job.is_final:
        return "-"
    return str(job.workers) if job.workers == job.desired_workers else f"{job.workers}/{job.desired_workers}"


def format_steps(job: Job) -> str:
    """`120/500`, or `120` where the total is not known yet."""
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def format_number(value: Any) -> str:
    """Four significant digits; `-` for nothing."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def styled_status(status: str) -> Text:
    """A status in its colour."""
    from rich.text import Text

    return Text(status, style=STATUS_STYLES.get(status, ""))


def job_table(jobs: list[Job], now: datetime) -> Table:
    """`rubato ps`."""
    from rich.table import Table
    from rich.text import Text

    rows = [
        (
            job.id,
            job.name,
            job.status,
            format_workers(job),
            format_steps(job),
            format_number((job.metrics or {}).get("loss")),
            format_age(job.created_at, now),
        )
        for job in jobs
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(("ID", "NAME", "STATUS", "WORKERS", "STEP", "LOSS", "AGE")):
        # On a narrow terminal the name takes more lines; half an id would be of no use.
        is_name = title == "NAME"
        table.add_column(
            title,
            justify="right" if title in ("WORKERS", "STEP", "LOSS") else "left",
            no_wrap=not is_name,
            overflow="fold",
            min_width=MIN_NAME_WIDTH if is_name else max(len(title), *(len(row[index]) for row in rows)),
        )
    for row in rows:
        texts = [Text(cell) for cell in row]
        texts[2] = styled_status(row[2])
        table.add_row(*texts)
    return table


def describe_job(job: Job, now: datetime) -> list[tuple[str, str]]:
    """`rubato get`: titles and values."""
    lines = [
        ("id", job.id),
        ("name", job.name),
        ("status", job.status + (f" ({job.phase})" if job.phase and not job.is_final else "")),
        ("workers", f"{job.workers} of {job.desired_workers} wanted, {job.min_workers} to {job.max_workers} allowed"),
        ("step", format_steps(job)),
        ("restarts", str(job.restarts)),
        ("scalings", str(job.scalings)),
        ("created", f"{job.created_at} ({format_age(job.created_at, now)} ago)" if job.created_at else "-"),
    ]
    if job.message:
        lines.insert(3, ("why", job.message))
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
        lines += [("result step", str(job.result.get("step"))), ("digest", str(job.result.get("digest")))]
    failure = job.failure or {}
    if failure.get("message") == job.message:
        failure = {**failure, "message": None}  # It stands above, as the reason of the status.
    return lines + describe_failure(failure)


_TITLES = {"failure_class": "failure class", "advice": "what to do"}


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


def worker_table(workers: list[Worker]) -> Table:
    """The workers of a job."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKER", "RANK", "STATE", "PHASE", "STEP", "MICROBATCHES", "EACH", "PID", "NODE"):
        table.add_column(title, no_wrap=True)
    for worker in workers:
        table.add_row(
            worker.worker_id,
            "-" if worker.rank is None else str(worker.rank),
            worker.state,
            worker.phase or "-",
            "-" if worker.step is None else str(worker.step),
            "-" if worker.microbatches is None else str(worker.microbatches),
            "-" if worker.microbatch_seconds is None else format_pause(worker.microbatch_seconds),
            "-" if worker.pid is None else str(worker.pid),
            worker.node or "-",
        )
    return table


def node_table(nodes: list[dict[str, Any]]) -> Table:
    """The nodes of a cluster."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NODE", "HOST", "STATE", "CPU", "GPU", "WORKERS", "JOBS"):
        table.add_column(title, no_wrap=True)
    for node in nodes:
        table.add_row(
            node["node_id"][:12],
            node["hostname"] or node["address"],
            node["state"],
            f"{node['cpu_used']:g}/{node['cpu']:g}",
            f"{node['gpu_used']:g}/{node['gpu']:g}" if node["gpu"] else "-",
            str(node["workers_left"]),
            ", ".join(job["name"] for job in node["jobs"]) or "-",
        )
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
