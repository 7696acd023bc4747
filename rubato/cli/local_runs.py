"""What commands on jobs find where the job is a `rubato run`: its files and its control socket, and no service.

`source_of` gives the commands either this or a client; both have the methods that those use.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rubato.cli.options import connect, is_local_run
from rubato.errors import RunNotFound, UserError
from rubato.home import Home
from rubato.wire.terminal import readable

if TYPE_CHECKING:
    from rubato.client import Client, Event, Job, JobUpdate, LogLine, MetricPoint, Worker
    from rubato.client.records import GapListener
    from rubato.launch.records import LocalRecord

TAIL = 100
"""Lines of output that are shown where nobody says how many; as a service does."""
LOOK_EVERY_S = 0.3
SILENT = "does not answer"
"""Why nothing more is told of a run that lives."""


@contextlib.contextmanager
def source_of(job: str, url: str | None) -> Iterator[Client | LocalRuns]:
    """Who knows a job: the runs of this machine, or a service; raises as `connect` does."""
    if is_local_run(job):
        yield LocalRuns(Home.from_environment())
        return
    with connect(url) as client:
        yield client


@contextlib.contextmanager
def local_runs() -> Iterator[Client | LocalRuns]:
    """The runs of this machine, as a source."""
    yield LocalRuns(Home.from_environment())


class LocalRuns:
    """The runs of one home, told as a client tells jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def jobs(
        self,
        *,
        status: tuple[str, ...] = (),
        text: str | None = None,
        limit: int | None = None,
        created_after: str | None = None,
        **others: Any,
    ) -> Iterator[Job]:
        """The runs, newest first, each with the `bytes` of its folder; arguments as of a client.

        One that lives and does not answer (stopped, hung, another user's) counts as running, and says so.

        Raises:
            UserError: a filter that runs do not have.
        """
        from rubato.client.models import Job, decode

        if wrong := [name for name, value in others.items() if value]:
            raise UserError(f"a `rubato run` has no {' and no '.join(wrong)}: leave that out")
        begin = datetime.fromisoformat(created_after) if created_after else datetime.min.replace(tzinfo=UTC)
        left = limit
        for record in self._records():
            if left == 0:
                return
            if datetime.fromisoformat(record.began_at) < begin or (text and text.lower() not in record.name.lower()):
                continue
            try:
                told = describe_run(record)
            except UserError as error:  # the others are told all the same
                told = _known_of(record) | {"status": "running", "reason": SILENT, "message": str(error)}
            if status and told["status"] not in status:
                continue
            left = None if left is None else left - 1
            yield decode(Job, {**told, "bytes": bytes_of(record.folder)})

    def delete(self, run_id: str) -> str:
        """Remove the folder of a run that is over; checkpoints that it kept elsewhere stay. Returns its name.

        Raises:
            UserError: it is not over, or others keep their checkpoints with it.
        """
        from rubato.launch.claim import held_by
        from rubato.launch.control import RUN_FILE

        record = self._record(run_id)
        if record.status() is not None:
            raise UserError(f"{run_id} is alive; `rubato cancel {run_id} --wait` ends it")
        guests = [one.run_id for one in self._records() if one.run_id != run_id and _is_within(one, record.folder)]
        if guests:
            raise UserError(
                f"{run_id} holds the checkpoints of {', '.join(guests)}, which went on from it: delete that first, or "
                "keep all"
            )
        if holder := held_by(record.folder / "checkpoints"):
            raise UserError(f"{holder} saves its checkpoints to {run_id}'s: wait for its end, or stop it")
        for path in record.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != RUN_FILE:
                path.unlink()
        # At last: for as long as this is there, the run is listed and can be deleted again.
        (record.folder / RUN_FILE).unlink()
        record.folder.rmdir()
        return record.name

    def job(self, run_id: str) -> Job:
        """How a run stands, or how it ended."""
        from rubato.client.models import Job, decode

        return decode(Job, describe_run(self._record(run_id)))

    def workers(self, run_id: str) -> list[Worker]:
        """The workers of a run; none once it is over."""
        from rubato.client.models import Worker, decode

        status = self._record(run_id).status()
        return [decode(Worker, item) for item in status["workers"]] if status else []

    def events(self, run_id: str, *, after: int = 0) -> Iterator[Event]:
        """What happened to a run after a position."""
        return (event for event in _events(self._record(run_id).lines("events")) if event.position > after)

    def follow_events(self, run_id: str, *, on_gap: GapListener | None = None) -> Iterator[Event]:
        """The same, and what happens until its end."""
        return _events(self._record(run_id).follow("events"))

    def follow(self, run_id: str, *, after: int = 0, on_gap: GapListener | None = None) -> Iterator[JobUpdate]:
        """The run again and again, and each of its events after a position."""
        from rubato.client.models import JobUpdate

        while True:
            state = self.job(run_id)
            for event in self.events(run_id, after=after):
                after = event.position
                yield JobUpdate(event=event)
            yield JobUpdate(job=state)
            if state.finished_at is not None:
                return
            time.sleep(LOOK_EVERY_S)

    def chart(
        self, run_id: str, *, names: tuple[str, ...] = (), max_points: int = 1000
    ) -> dict[str, dict[str, list[float]]]:
        """Each metric as `x` and `y`, every point of it."""
        series: dict[str, dict[str, list[float]]] = {}
        for row in self._record(run_id).lines("metrics"):
            for name, value in row["values"].items():
                if not names or name in names:
                    one = series.setdefault(name, {"x": [], "y": []})
                    one["x"].append(row["step"])
                    one["y"].append(value)
        return series

    def metrics(self, run_id: str) -> Iterator[MetricPoint]:
        """The committed steps, each with all that was measured and logged of it."""
        from rubato.client.models import MetricPoint, decode

        rows = self._record(run_id).lines("metrics")
        return (decode(MetricPoint, {**row, "position": position}) for position, row in enumerate(rows, start=1))

    def logs(self, run_id: str, *, tail: int | None = None, on_search: Any = None, **only: Any) -> list[LogLine]:
        """The newest lines of output, oldest first; `only` as for `follow_logs`, `on_search` of no use here."""
        limit = tail or (None if only.get("since") else TAIL)
        return list(deque(_log_lines(self._record(run_id).numbered("logs"), **only), limit))

    def whole_log(self, run_id: str, **only: Any) -> Iterator[LogLine]:
        """All lines of output, oldest first; `only` as for `follow_logs`."""
        return _log_lines(self._record(run_id).numbered("logs"), **only)

    def follow_logs(
        self,
        run_id: str,
        *,
        tail: int | None = None,
        whole: bool = False,
        on_gap: GapListener | None = None,
        **only: Any,
    ) -> Iterator[LogLine]:
        """The lines of `logs`, then every line as it is written, until the run ends.

        Args:
            run_id: whose.
            tail: begin with so many.
            whole: begin with the first.
            on_gap: of no use here.
            only: ranks, attempt, text, since: which lines.
        """
        record = self._record(run_id)
        begun = [] if whole else self.logs(run_id, tail=tail, **only)
        yield from begun
        # Lines before the tail's end are not told twice: they are numbered.
        last = int(begun[-1].id) if begun else 0
        yield from (line for line in _log_lines(record.follow_numbered("logs"), **only) if int(line.id) > last)

    def scale(self, run_id: str, workers: int) -> Job:
        """Ask for another number of workers."""
        return self._ask(run_id, verb="scale", workers=workers)

    def pause(self, run_id: str, *, force: bool = False) -> Job:
        """Save a checkpoint, and end."""
        if force:
            raise UserError(f"a run pauses once it has saved its checkpoint; `rubato cancel {run_id}` does not wait")
        return self._ask(run_id, verb="pause")

    def resume(self, run_id: str) -> NoReturn:
        """A run is not queued again.

        Raises:  UserError: says what to do instead.
        """
        record = self._record(run_id)
        workers = f" --workers {record.wanted['desired_workers']}" if "desired_workers" in record.wanted else ""
        again = f"rubato run FILE{workers} --checkpoint-dir {shlex.quote(record.checkpoints)}"
        raise UserError(
            f"a run is not queued again: `{again}` goes on from its newest checkpoint. Give FILE and all other options "
            f"as they were for {record.name}"
        )

    def cancel(self, run_id: str, *, force: bool = False, grace_s: float | None = None) -> Job:
        """End it at the next step, or at once."""
        if grace_s is not None:
            raise UserError("the grace of a run is its limits.stop_grace; --force ends it at once")
        return self._ask(run_id, verb="cancel", force=force)

    def checkpoint(self, run_id: str) -> Job:
        """Ask for a checkpoint."""
        return self._ask(run_id, verb="checkpoint")

    def wait(
        self,
        run_id: str,
        *,
        statuses: tuple[str, ...] = (),
        timeout_s: float | None = None,
        on_look: Callable[[Job], None] | None = None,
    ) -> Job:
        """Wait until its status is one of these, or it is over; after `timeout_s` the run as it then stands."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.job(run_id)
            if on_look is not None:
                on_look(found)
            is_late = deadline is not None and time.monotonic() >= deadline
            if found.status in statuses or found.finished_at is not None or is_late:
                return found
            time.sleep(LOOK_EVERY_S)

    def _records(self) -> Iterator[LocalRecord]:
        """Of all runs, the newest first; those that cannot be read are left out."""
        from rubato.launch.records import run_ids

        for run_id in reversed(run_ids(self._home.path)):
            if is_local_run(run_id):
                with contextlib.suppress(RunNotFound):
                    yield self._record(run_id)

    def _record(self, run_id: str) -> LocalRecord:
        from rubato.launch.records import read_record

        return read_record(self._home.path, run_id)

    def _ask(self, run_id: str, **request: Any) -> Job:
        self._record(run_id).ask(request)
        return self.job(run_id)


def _is_within(record: LocalRecord, folder: Path) -> bool:
    return Path(record.checkpoints).resolve().is_relative_to(folder.resolve())


def bytes_of(folder: Path) -> int:
    """What the files in a folder take; those that vanish meanwhile take nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def describe_run(record: LocalRecord) -> dict[str, Any]:
    """A run in the words that a service has for a job; `folder` and `checkpoints` beside them."""
    told, told_of = record.status(), _known_of(record)
    if told is not None:
        observed = told.get("observed") or {}
        return told_of | {
            "step": observed.get("step", told_of["step"]),
            "status": observed.get("state", "starting"),
            "phase": observed.get("phase"),
            "message": observed.get("reason") or None,
            **{key: observed.get(key, 0) for key in ("workers", "joining")},
            **_history_of(told),
        }
    end = record.outcome()
    if end is None:
        message = "its process ended without a word, as by SIGKILL"
        return told_of | {"status": "failed", "message": message, "finished_at": record.written_at()}
    failure = end.get("failure") or None
    told_of |= {"status": end["state"], "result": end.get("result"), "failure": failure, "finished_at": end["time"]}
    told_of |= _history_of(end)
    return told_of | {"message": failure["message"] if failure else None}


def _history_of(told: dict[str, Any]) -> dict[str, Any]:
    """What became of its workers, by its own word; that of its end has it, too."""
    from rubato.launch.records import WANTED

    observed = told.get("observed") or {}
    wanted = {key: told[key] for key in WANTED if key in told}
    counted = {key: observed.get(key, 0) for key in ("generation", "restarts", "scalings")}
    return wanted | counted | {"total_steps": observed.get("total_steps")}


def _known_of(record: LocalRecord) -> dict[str, Any]:
    """What its files tell, however it stands."""
    rows = record.lines("metrics")
    return {
        "id": record.run_id,
        "name": record.name,
        "step": rows[-1]["step"] if rows else 0,
        "total_steps": None,
        "metrics": rows[-1]["values"] if rows else None,
        "created_at": record.began_at,
        **record.wanted,
        "folder": str(record.folder),
        "checkpoints": record.checkpoints,
    }


def _events(lines: Any) -> Iterator[Event]:
    from rubato.client.models import Event, decode

    for position, line in enumerate(lines, start=1):
        yield decode(Event, {"message": _how_it_ended(line), **line, "position": position})


def _how_it_ended(line: dict[str, Any]) -> str:
    """What the last event of a run says, which has no message of its own."""
    failure = line.get("failure") or {}
    return ": ".join(filter(None, (line.get("state"), failure.get("message"))))


def _log_lines(
    lines: Iterable[tuple[int, dict[str, Any]]],
    *,
    ranks: tuple[int, ...] = (),
    attempt: int | None = None,
    text: str | None = None,
    since: datetime | None = None,
) -> Iterator[LogLine]:
    from rubato.client.models import LogLine, decode

    if attempt is not None:
        raise UserError("a run is one attempt: leave --attempt out")
    for number, line in lines:
        is_old = since is not None and datetime.fromisoformat(line["time"]).astimezone(UTC) < since
        # As a service does: colours are not read, and case does not count.
        is_other = text is not None and text.lower() not in readable(line["line"], keep_colours=False).lower()
        if is_old or (ranks and line["rank"] not in ranks) or is_other:
            continue
        yield decode(LogLine, {**line, "id": str(number)})


if TYPE_CHECKING:
    Source = Client | LocalRuns
