"""`make demo`: the whole path on real input, told step by step; fails loudly when anything is not as promised.

Trains the image classifier on this machine, scales it 1 -> 3, kills a worker, scales it 3 -> 2, and then compares the
digest of its weights with that of a run to which nothing happened. Leaves the service up.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rubato.cli.exits import ExitCode
from rubato.cli.follow import ProgressLine, describe_event, gap_listener, progress_line
from rubato.cli.keeper import control
from rubato.cli.keeper.process_table import identify, read_table, send_signal, tree_of
from rubato.cli.output import fail, note, put, put_json
from rubato.cli.render import describe_failure, describe_generation
from rubato.cli.service_commands import StepLine, make_login_link
from rubato.cli.specfile import unique_name
from rubato.errors import RubatoError
from rubato.home import Home
from rubato.wire.events import EventKind

if TYPE_CHECKING:
    from rubato.client import Client, Event, Job, JobUpdate, Worker

RECIPE = "image-classifier"
EPOCHS = 60
"""Enough to recognise more than 99 % of the test images, and as short as it may be: it is trained twice. A quick
machine, where that is over before everything has happened to it, gets more.
"""
NEEDED_S = 30.0
"""Training during all that is to happen: workers start three times meanwhile."""
TRIES = 3
STEPS_BETWEEN = 20
"""Steps to train between two changes, so that one sees each membership at work."""
PATIENCE_S = 120.0
"""The longest a single change may take: joining means starting Python and importing torch, on busy cores."""


class DemoFailed(RubatoError):
    """Something was not as promised."""


class TooShort(DemoFailed):
    """The job was over, or would be, before everything has happened to it."""

    def __init__(self, message: str, longer: float = 4.0) -> None:
        super().__init__(message)
        self.longer = longer
        """How many times as many epochs it is to get."""


@dataclass
class Story:
    """One job, followed through its live stream."""

    client: Client
    job: Job
    line: ProgressLine
    updates: Iterator[JobUpdate]
    formed: list[Event] = field(default_factory=list)
    """Every `generation.formed` so far."""

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Watch until `done`.

        Raises:
            DemoFailed: the job ended first, or it took too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            update = next(self.updates, None)
            if update is None:
                self.job = self.client.job(self.job.id)
                kind = TooShort if self.job.status == "succeeded" else DemoFailed
                raise kind(f"the job {self.job.status} before {what}{_failure_text(self.job)}")
            self.take(update)
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"waited {PATIENCE_S:.0f} s for this: {what}. The job: {self.job.message or self.job.status}"
                )

    def take(self, update: JobUpdate) -> None:
        """One message of the stream."""
        if update.job is not None:
            self.job = update.job
            self.line.show(update.job)
        event = update.event
        if event is None:
            return
        if event.kind == EventKind.GENERATION_FORMED:
            self.formed.append(event)
            self.line.tell(f"    {describe_event(event)}")
        elif event.kind in (EventKind.WORKER_LOST, EventKind.RESTARTING, EventKind.CAPACITY_WAITING):
            self.line.tell(f"    {describe_event(event)}")

    def train_on(self, steps: int) -> None:
        """Watch `steps` more steps."""
        target = self.job.step + steps
        self.until(lambda: self.job.step >= target, f"step {target}")

    def until_formed(self, workers: int, since: int, what: str) -> None:
        """Watch until one of the generations after the first `since` has so many workers."""
        self.until(lambda: any(event.data.get("workers") == workers for event in self.formed[since:]), what)

    def scale(self, workers: int) -> None:
        """Change the workers and watch it happen."""
        since = len(self.formed)
        self.line.tell(f"  rubato scale {self.job.name} {workers}")
        self.client.scale(self.job.id, workers)
        self.until_formed(workers, since, f"it had {workers} workers")

    def must_last(self, needed_s: float) -> None:
        """See from the steps so far that it will train for long enough.

        Raises:
            TooShort: it will not; it is cancelled.
        """
        points = self.client.metrics(self.job.id, names=("step_seconds",))
        steps = [seconds for point in points if (seconds := point.values.get("step_seconds")) is not None]
        if not steps or self.job.total_steps is None:
            return
        lasts_s = statistics.median(steps) * self.job.total_steps
        if lasts_s < needed_s:
            self.client.cancel(self.job.id)
            raise TooShort(f"the job would train for {lasts_s:.0f} s", 1.25 * needed_s / lasts_s)

    def finish(self) -> Job:
        """Watch to the end."""
        for update in self.updates:
            self.take(update)
        self.job = self.client.job(self.job.id)
        if self.job.status != "succeeded":
            raise DemoFailed(f"the job {self.job.status}{_failure_text(self.job)}")
        return self.job


def run_demo(*, as_json: bool = False) -> ExitCode:
    """The demo, from `rubato up` to the comparison of digests.

    Args:
        as_json: what came of it is data on stdout, and the story goes to stderr.
    """
    began = time.monotonic()
    home = Home.from_environment()
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            outcome = play(home)
    except KeyboardInterrupt:
        note("\nStopped. The service is up and the job goes on: `rubato ps` shows it, `make down` ends everything.")
        return ExitCode.INTERRUPTED
    except RubatoError as error:
        fail(f"the demo failed: {error}")
        note(f"The service is left as it is. Logs: {home.path}/*.log, `rubato doctor`; `make down` ends everything.")
        return ExitCode.ERROR
    took_s = time.monotonic() - began
    if as_json:
        put_json({**outcome, "seconds": round(took_s, 1)})
    else:
        put(f"\nThe demo took {took_s:.0f} s. The service stays up; `make down` stops it.")
    return ExitCode.OK


def play(home: Home) -> dict[str, Any]:
    """Start the service, run both jobs and compare them; what came of it, as the API says it.

    Raises:
        RubatoError: something was not as promised.
    """
    url = start_service(home)
    from rubato.client import Client

    with Client(url, home.read_token(), home=home) as client:
        disturbed, formed, epochs = run_disturbed_long_enough(client, home)
        undisturbed = run_undisturbed(client, epochs)
        tell_story(client, disturbed, formed)
        compare(disturbed, undisturbed)
        tell_page(client.url, home, disturbed)
        return {
            "url": client.url,
            "digest": digest_of(disturbed),
            "disturbed": disturbed.raw,
            "undisturbed": undisturbed.raw,
            "generations": [event.raw for event in formed],
        }


def start_service(home: Home) -> str:
    """`rubato up`; a home that is up already is used as it is."""
    from_environment = os.environ.get("RUBATO_PORT", "")
    port = int(from_environment) if from_environment.isdigit() else None
    with StepLine("Starting Rubato") as tell:
        state = control.bring_up(home, port=port, slots=None, tell=tell)
    put(f"Rubato is up at {state.url}")
    link = make_login_link(state.url, home)
    if link:
        put(f"  the page, signed in once: {link}")
    return state.url


def spec_of(name: str, epochs: int) -> dict[str, Any]:
    """The job of both runs. Worker counts may differ between them; nothing else does."""
    return {
        "name": name,
        "recipe": RECIPE,
        "config": {"epochs": epochs},
        "workers": {"initial": 1, "min": 1, "max": 4},
        "labels": {"from": "demo"},
    }


def run_disturbed_long_enough(client: Client, home: Home) -> tuple[Job, list[Event], int]:
    """`run_disturbed`, with as many epochs as this machine needs for the whole story."""
    epochs = EPOCHS
    for _ in range(TRIES - 1):
        try:
            return *run_disturbed(client, home, epochs), epochs
        except TooShort as short:
            epochs = math.ceil(epochs * short.longer)
            put(f"This machine is quick: {short}. Once more, with {epochs} epochs.")
    return *run_disturbed(client, home, epochs), epochs


def run_disturbed(client: Client, home: Home, epochs: int) -> tuple[Job, list[Event]]:
    """Train, and do to the job what happens to jobs."""
    job = client.submit(spec_of(unique_name("demo"), epochs))
    put(f"\nJob {job.name}: {RECIPE} on one worker. Watch it: {client.url}/jobs/{job.id}")
    with progress_line() as line:
        story = Story(client, job, line, client.follow(job.id, on_gap=gap_listener(line)))
        story.until_formed(1, 0, "it trained")
        story.train_on(STEPS_BETWEEN)
        story.must_last(NEEDED_S)
        story.scale(3)
        story.train_on(STEPS_BETWEEN)
        kill_worker(story, home)
        story.train_on(STEPS_BETWEEN)
        story.scale(2)
        return story.finish(), story.formed


def kill_worker(story: Story, home: Home) -> None:
    """SIGKILL one training process, and watch the others go on and its successor join."""
    victim = choose_victim(story.client.workers(story.job.id))
    process = identify(victim.pid or 0)
    record = home.read_record()
    family = tree_of(record.processes.values(), read_table()) if record else []
    if process is None or process not in family:
        raise DemoFailed(
            f"worker {victim.worker_id} names pid {victim.pid}, which is no process of {home.path}; not killed"
        )
    since = len(story.formed)
    wanted = story.job.desired_workers
    story.line.tell(f"  kill -9 {victim.pid}   (training process of rank {victim.rank}, at step {story.job.step})")
    send_signal(process, signal.SIGKILL)
    story.until(lambda: len(story.formed) > since, "the others went on without the killed worker")
    story.until_formed(wanted, since, f"it had {wanted} workers again")


def choose_victim(workers: list[Worker]) -> Worker:
    """The training worker of the highest rank."""
    training = [worker for worker in workers if worker.rank is not None and worker.pid and worker.state == "active"]
    if not training:
        raise DemoFailed(f"no worker trains; the service lists {[worker.raw for worker in workers]}")
    return max(training, key=lambda worker: worker.rank or 0)


def run_undisturbed(client: Client, epochs: int) -> Job:
    """The same job on one worker, with nothing happening to it."""
    job = client.submit(spec_of(unique_name("undisturbed"), epochs))
    put(f"\nJob {job.name}: the same on one worker, undisturbed.")
    with progress_line() as line:
        return Story(client, job, line, client.follow(job.id, on_gap=gap_listener(line))).finish()


def tell_story(client: Client, disturbed: Job, formed: list[Event]) -> None:
    """The pauses and the accuracy."""
    put("\nWhat happened to the first job:")
    for event in formed:
        put(f"  {str(event.data.get('cause', '')).replace('_', ' '):<12} {describe_generation(event)}")
    measured = [
        point for point in client.metrics(disturbed.id, names=("accuracy",)) if point.values.get("accuracy") is not None
    ]
    if measured:
        put(f"  test accuracy {measured[-1].values['accuracy']:.2%} at step {measured[-1].step}")


def tell_page(url: str, home: Home, job: Job) -> None:
    """Where to look at it."""
    link = make_login_link(url, home)
    put(f"\nThe page: {url}/jobs/{job.id}" + (f"\n  sign in (once): {link}" if link else ""))


def digest_of(job: Job) -> str:
    """The digest of a job's result."""
    digest = str((job.result or {}).get("digest") or "")
    if not digest:
        raise DemoFailed(f"{job.name} succeeded without a digest: {job.result}")
    return digest


def compare(disturbed: Job, undisturbed: Job) -> None:
    """Show both digests; raise DemoFailed unless they are equal."""
    put("\nWeights, buffers and optimizer state, as SHA-256:")
    put(f"  disturbed    {digest_of(disturbed)}  ({disturbed.scalings} scalings, 1 worker killed)")
    put(f"  undisturbed  {digest_of(undisturbed)}  (1 worker, nothing happened)")
    if digest_of(disturbed) != digest_of(undisturbed):
        raise DemoFailed(
            "the digests differ: the weights depend on what happened to the job; please report this, with both ids: "
            f"{disturbed.id}, {undisturbed.id}"
        )
    put("  equal: whatever happened left no trace in the weights.")


def _failure_text(job: Job) -> str:
    lines = [f"{title}: {value}" for title, value in describe_failure({**(job.failure or {}), "message": None})]
    why = f": {job.message}" if job.message else ""
    return "\n  ".join([why, *lines])
