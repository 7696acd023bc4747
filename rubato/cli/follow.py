"""Following a job in the terminal: a progress bar, what happens to it, and the end of a scaling."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from rubato.cli.exits import ExitCode, code_for_status
from rubato.cli.options import is_local_run
from rubato.cli.output import is_live, note, stderr_console
from rubato.cli.render import (
    WIDE,
    describe_failure,
    describe_generation,
    format_number,
    format_workers,
    say_status,
)
from rubato.errors import ApiError, RubatoError, ServiceUnreachable
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import Status
from rubato.wire.units import plural

if TYPE_CHECKING:
    from rubato.cli.local_runs import Source
    from rubato.client import Client, Event, Job

TOLD = {
    EventKind.GENERATION_FORMED,
    EventKind.WORKER_LOST,
    EventKind.RESTARTING,
    EventKind.DIVERGED,
    EventKind.NON_FINITE,
    EventKind.UNREGISTERED,
    EventKind.LOSS_MISSING,
    EventKind.CAPACITY_WAITING,
    EventKind.CHECKPOINT_FAILED,
    EventKind.CHECKPOINT_CORRUPT,
}
"""Events worth a line while one watches; `rubato get` and the page show them all."""
PLAIN_EVERY_S = 5.0
"""Where there is no terminal: at most one progress line in so many seconds."""
WAIT_S = 25.0
"""Asked for at once; proxies commonly cut idle requests at 30 to 60 s."""
ASK_S = 0.5
"""Least time between two questions."""


class ProgressLine(Protocol):
    """Shows how far a job is."""

    def show(self, job: Job) -> None:
        """The job changed."""

    def tell(self, text: str) -> None:
        """Something happened: a line that stays."""


class PlainProgress:
    """Lines, for logs and pipes."""

    def __init__(self) -> None:
        self._said_at = 0.0
        self._status = ""
        self._said = ""

    def show(self, job: Job) -> None:
        """At most one line in a few seconds, and one at every change of status; none that says the same again."""
        now = time.monotonic()
        if job.status == self._status and now - self._said_at < PLAIN_EVERY_S:
            return
        text = describe_progress(job)
        self._said_at, self._status = now, job.status
        if text != self._said:
            self._said = text
            note(text)

    def tell(self, text: str) -> None:
        """A line."""
        note(text)


class LiveProgress:
    """A bar that moves, for terminals."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        console = stderr_console()
        one_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30 if console.width >= WIDE else 10),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[facts]}", style="dim", markup=False, table_column=one_line),
            console=console,
            expand=True,
            transient=True,
        )
        self._task = self.bar.add_task("waiting", total=1, facts="")

    def show(self, job: Job) -> None:
        """Move the bar."""
        facts = describe_facts(job)
        description = job.status if job.status != "running" else (job.phase or "running")
        self.bar.update(
            self._task, description=description, completed=job.step, total=job.total_steps or 1, facts=facts
        )

    def tell(self, text: str) -> None:
        """A line above the bar."""
        self.bar.console.print(text, markup=False, highlight=False)


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A moving bar on a terminal, plain lines otherwise."""
    if not is_live():
        yield PlainProgress()
        return
    line = LiveProgress()
    with line.bar:
        yield line


def describe_facts(job: Job) -> str:
    """Workers, loss, accuracy and speed: what one wants to see beside the bar."""
    metrics = job.metrics or {}
    workers = format_workers(job)
    facts = [] if job.is_final else [f"{workers} worker{'' if workers == '1' else 's'}"]
    facts += [
        f"{name} {format_number(metrics[name])}" for name in ("loss", "accuracy") if metrics.get(name) is not None
    ]
    speed = metrics.get("samples_per_second")
    if speed:
        facts.append(f"{speed:.0f} samples/s")
    return ", ".join(facts)


def describe_progress(job: Job) -> str:
    """One line on a job."""
    total = f"/{job.total_steps}" if job.total_steps else ""
    # How it ended is told apart, at length.
    why = f" ({job.message})" if job.message and job.status != "running" and not job.is_final else ""
    return ", ".join(filter(None, (f"{job.status}{why}: step {job.step}{total}", describe_facts(job))))


def describe_event(event: Event) -> str:
    """One line on an event, with its step."""
    is_told = event.step is None or event.kind == EventKind.GENERATION_FORMED
    return sentence_of(event) if is_told else f"{sentence_of(event)} (step {event.step})"


def sentence_of(event: Event) -> str:
    """What happened, as the service says it; of a generation with its pause."""
    if event.kind != EventKind.GENERATION_FORMED:
        return event.message
    cause = str(event.data.get("cause", "")).replace("_", " ")
    return f"{describe_generation(event)} ({cause})" if cause else describe_generation(event)


def gap_listener(line: ProgressLine) -> GapTold:
    """Tells once that the service is away, and not at every attempt to reach it again."""
    return GapTold(line)


class GapTold:
    """Called for every failed attempt to reach the service; says it once a gap."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._last = 0.0

    def __call__(self, error: RubatoError) -> None:
        """One failed attempt."""
        now = time.monotonic()
        if now - self._last > 15:
            self._line.tell("The service does not answer; training goes on without it. Trying again ...")
        self._last = now


def follow_to_end(client: Client, job: Job) -> ExitCode:
    """Show a new job until it is final; Ctrl-C detaches. Returns the exit code that tells how the job ended."""
    try:
        with progress_line() as line:
            line.show(client.job(job.id))
            for update in client.follow(job.id, on_gap=gap_listener(line)):
                if update.job is not None:
                    line.show(update.job)
                if update.event is not None and update.event.kind in TOLD:
                    line.tell(describe_event(update.event))
    except KeyboardInterrupt:
        back, end = f"rubato logs {job.name} -f", f"rubato cancel {job.name}"
        note(f"Detached; the job goes on. Come back with `{back}`; `{end}` ends it.")
        return ExitCode.NOT_FINISHED
    job = client.job(job.id)
    tell_end(job)
    return code_for_status(job.status)


def tell_end(job: Job) -> None:
    """How the job ended, on stderr."""
    if job.status == "succeeded":
        result = job.result or {}
        note(f"{job.name} succeeded at step {result.get('step', job.step)}, {describe_facts(job)}")
        if result.get("digest"):
            note(f"digest {result['digest']}")
        return
    note(f"{say_status(job)}{f': {job.message}' if job.message else ''}")
    for title, value in describe_failure({**(job.failure or {}), "message": None}):
        note(f"  {title}: {value}")


def wait_for_status(client: Source, job_id: str, statuses: tuple[str, ...], timeout_s: float | None = None) -> Job:
    """Show a job until its status is one of these, or final; after `timeout_s` the job as it then stands."""
    again = " ".join(["rubato wait", job_id, *(f"--for {status}" for status in statuses)])
    with detachable(f"`{again}` waits on, `rubato get {job_id}` looks once"), progress_line() as line:
        return client.wait(job_id, statuses=statuses, timeout_s=timeout_s, on_look=line.show)


@contextmanager
def detachable(back: str) -> Iterator[None]:
    """Ctrl-C ends a wait, not what is waited for; `back` says how to look again."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Detached, and nothing else changes: {back}.")
        raise typer.Exit(ExitCode.NOT_FINISHED) from None


def wait_while(
    state: str,
    found: dict[str, Any],
    ask: Callable[[float], dict[str, Any]],
    *,
    timeout_s: float | None,
    on_look: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Ask again for as long as something is in a state; lives through a minute without the service.

    Args:
        state: what `state` of the reply is until then.
        found: the first reply.
        ask: asks once, for a reply within so many seconds.
        timeout_s: after this the reply that was there last; None: however long it takes.
        on_look: called with each reply.

    Raises:
        ServiceUnreachable: no answer for a minute.
    """
    from rubato.client import absence

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    away, told = absence.Absence(), gap_listener(PlainProgress())
    while found["state"] == state and (left := min(WAIT_S, deadline - time.monotonic())) > 0:
        asked_at = time.monotonic()
        try:
            found = ask(left)
        except (ServiceUnreachable, ApiError) as error:
            away.bear(error)
            told(error)
            time.sleep(min(absence.AWAY_POLL_S, left))
            continue
        away.end()
        on_look(found)
        if found["state"] == state and time.monotonic() - asked_at < min(ASK_S, left):
            time.sleep(ASK_S)  # a service that does not wait must not be asked in a tight loop
    return found


def last_position(client: Source, job_id: str) -> int:
    """Position of the newest event."""
    return max((event.position for event in client.events(job_id)), default=0)


def wait_for_workers(client: Source, job: Job, *, after: int, timeout_s: float | None) -> ExitCode:
    """Show a scaling until its generation has formed, or until nobody joins any more where it has so many already.

    `job` is the job as it was after the request, `after` the position of the newest event before it.
    """
    wanted = job.desired_workers
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    before = job.workers
    try:
        with progress_line() as line:
            for update in client.follow(job.id, after=after, on_gap=gap_listener(line)):
                event, state = update.event, update.job
                if (
                    event is not None
                    and event.kind == EventKind.GENERATION_FORMED
                    and event.data.get("workers") == wanted
                ):
                    line.tell(describe_generation(event))
                    return ExitCode.OK
                if event is not None and event.kind in TOLD:
                    line.tell(describe_event(event))
                if state is not None and state.desired_workers != wanted:
                    line.tell(f"Someone asked for {state.desired_workers} workers meanwhile.")
                    return ExitCode.ERROR
                if state is not None and is_laid_aside(state):
                    line.tell(describe_wish(state, wanted))
                    return ExitCode.NOT_FINISHED
                if state is not None:
                    before = state.workers
                    line.show(state)
                    if job.workers == state.workers == wanted and not state.joining:
                        # Whoever was to make them more is let go, and for that no generation is formed.
                        line.tell(f"{job.name} has {plural(wanted, 'worker')}, and nobody joins.")
                        return ExitCode.OK
                if deadline is not None and time.monotonic() > deadline:
                    line.tell(f"Still {before} of {wanted} workers; the wish stands, and is met when slots are free.")
                    return ExitCode.NOT_FINISHED
    except KeyboardInterrupt:
        note(f"Detached; the wish for {wanted} workers stands. `rubato get {job.name}` shows where it is.")
        return ExitCode.NOT_FINISHED
    job = client.job(job.id)
    note(f"{say_status(job)} before it had {wanted} workers.")
    return ExitCode.ERROR if job.status == "succeeded" else code_for_status(job.status)


def describe_wish(job: Job, workers: int) -> str:
    """What becomes of a wish for workers of a job that is laid aside."""
    wish = f"the wish for {plural(workers, 'worker')} holds from `rubato resume {job.name}` on"
    return f"{job.name} is {job.status}; {wish}."


def is_laid_aside(job: Job) -> bool:
    """Whether it trains again only once somebody resumes it. What makes way for another job goes on by itself, and a
    `rubato run` ends by a pause.
    """
    makes_way = job.status == Status.PAUSING and job.reason == Reason.PREEMPTED
    return job.status in (Status.PAUSING, Status.PAUSED) and not makes_way and not is_local_run(job.id)
