"""What jobs did: workers, events, metrics, logs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rubato.client.conversation import Call, Flow, Item, call, each, flow
from rubato.client.models import Attempt, Checkpoint, Event, Job, JobUpdate, LogLine, MetricPoint, Worker, decode
from rubato.client.paths import path_of
from rubato.client.transport import Message, Transport
from rubato.errors import ServiceUnreachable, UserError

GapListener = Callable[[ServiceUnreachable], None]
SearchListener = Callable[[float], None]
TAIL = 100
"""Lines of a log, where nobody says how many."""
BEGINNING = "0:0"
"""Of a log: before its first line."""


class Records:
    """A part of the client: what happened to jobs, and what they left."""

    _transport: Transport

    @call
    def workers(self, job: str) -> Call[list[Worker]]:
        """The workers of a job, by rank."""
        found = yield from self._transport.json("GET", path_of("jobs", job, "workers"))
        return [decode(Worker, item) for item in found["items"]]

    @flow
    def events(self, job: str, *, after: int = 0) -> Flow[Event]:
        """The events after a position, up to now."""
        log = _read_on(self._transport, path_of("jobs", job, "events"), after, {"limit": 500})
        yield from each(log, lambda item: [decode(Event, item)])

    @flow
    def follow(self, job: str, *, after: int = 0, on_gap: GapListener | None = None) -> Flow[JobUpdate]:
        """The job's live stream: every event after a position, and the job at each change; ends with the job.

        An update without either comes every few seconds while nothing happens.
        """
        yield from each(_updates(self._transport, job, after, on_gap), lambda update: [update])

    @flow
    def follow_events(self, job: str, *, after: int = 0, on_gap: GapListener | None = None) -> Flow[Event]:
        """The job's events as they happen; ends with the job."""
        updates = _updates(self._transport, job, after, on_gap)
        yield from each(updates, lambda update: [] if update.event is None else [update.event])

    @flow
    def metrics(self, job: str, *, after: int = 0, names: tuple[str, ...] = ()) -> Flow[MetricPoint]:
        """The committed steps after a position, up to now."""
        params = {"names": ",".join(names) or None, "limit": 1000}
        log = _read_on(self._transport, path_of("jobs", job, "metrics"), after, params)
        yield from each(log, lambda item: [decode(MetricPoint, item)])

    @flow
    def follow_metrics(
        self, job: str, *, after: int = 0, names: tuple[str, ...] = (), on_gap: GapListener | None = None
    ) -> Flow[MetricPoint]:
        """The committed steps after a position, then each as it is committed; ends with the job.

        A step that was trained again comes again, at a later position.
        """
        path, params = path_of("jobs", job, "metrics"), {"names": ",".join(names) or None, "after": after}
        messages = self._transport.stream(path, params=params, last_id=str(after), on_gap=on_gap)

        def points(message: Message) -> Iterator[MetricPoint]:
            if message.event == "metrics":
                yield from (decode(MetricPoint, item) for item in message.data["items"])

        yield from each(messages, points)

    @call
    def chart(
        self, job: str, *, names: tuple[str, ...] = (), max_points: int = 1000, x: str = "step"
    ) -> Call[dict[str, dict[str, list[float]]]]:
        """Each metric as `x` and `y`, thinned out to `max_points` in which the extremes stay.

        `means` and `weights` of the points make a mean over several of them: `y` alone would weigh the extremes only.

        Args:
            job: id or name.
            names: only these metrics; empty: all.
            max_points: of each metric, at most; 10 to 20,000.
            x: `step`, or `time` (seconds since 1970).
        """
        params = {"names": ",".join(names) or None, "max_points": max_points, "x": x}
        found = yield from self._transport.json("GET", path_of("jobs", job, "metrics", "chart"), params=params)
        return dict(found["series"])

    @call
    def logs(
        self,
        job: str,
        *,
        ranks: tuple[int, ...] = (),
        attempt: int | None = None,
        tail: int | None = None,
        text: str | None = None,
        since: datetime | None = None,
        on_search: SearchListener | None = None,
    ) -> Call[list[LogLine]]:
        """The job's newest log lines, oldest first: `tail` of them, or all of a time (aware) and later.

        Args:
            job: id or name.
            ranks: only these; empty: all.
            attempt: only this one.
            tail: 0 to 10,000 lines; None: 100, with `since` all.
            text: only lines that hold it.
            since: only lines of this time and later.
            on_search: told the part of the log that was looked through, 0 to 1, where that takes more than one look.
        """
        only, path = _log_filter(ranks, attempt, text, since), path_of("jobs", job, "logs")
        page = yield from self._transport.json("GET", path, params={**only, "tail": tail})
        items = list(page["items"])
        if tail is None and since is not None:
            while page.get("has_more"):
                page = yield from self._transport.json("GET", path, params={**only, "after": page["next"]})
                items += page["items"]
            return [decode(LogLine, item) for item in items]
        end, wanted = page.get("next"), TAIL if tail is None else tail
        while len(items) < wanted and page.get("earlier"):
            if on_search is not None:
                on_search(_searched(page["earlier"], end))
            params = {**only, "before": page["earlier"], "tail": wanted - len(items)}
            page = yield from self._transport.json("GET", path, params=params)
            items = [*page["items"], *items]
        return [decode(LogLine, item) for item in items]

    @flow
    def whole_log(
        self,
        job: str,
        *,
        ranks: tuple[int, ...] = (),
        attempt: int | None = None,
        text: str | None = None,
        since: datetime | None = None,
    ) -> Flow[LogLine]:
        """Every line of the job's log up to now, oldest first, read page by page; the filters are those of `logs`."""
        params = {**_log_filter(ranks, attempt, text, since), "limit": 10_000}
        after, has_more = BEGINNING if since is None else None, True
        while has_more:
            page = yield from self._transport.json(
                "GET", path_of("jobs", job, "logs"), params={**params, "after": after}
            )
            for item in page["items"]:
                yield Item(decode(LogLine, item))
            after, has_more = page["next"], page["has_more"]

    @flow
    def follow_logs(
        self,
        job: str,
        *,
        ranks: tuple[int, ...] = (),
        attempt: int | None = None,
        tail: int | None = None,
        text: str | None = None,
        since: datetime | None = None,
        whole: bool = False,
        on_gap: GapListener | None = None,
    ) -> Flow[LogLine]:
        """The lines of `logs`, or the whole log, then every line as it is written; ends with the job."""
        params = {**_log_filter(ranks, attempt, text, since), "tail": tail, "after": BEGINNING if whole else None}
        messages = self._transport.stream(path_of("jobs", job, "logs"), params=params, on_gap=on_gap)

        def lines(message: Message) -> Iterator[LogLine]:
            if message.event == "log":
                yield from (decode(LogLine, item) for item in message.data["items"])

        yield from each(messages, lines)

    @call
    def attempts(self, job: str) -> Call[list[Attempt]]:
        """The lives of the job's controller, in order."""
        found = yield from self._transport.all_of(path_of("jobs", job, "attempts"))
        return [decode(Attempt, item) for item in found]

    @call
    def generations(self, job: str) -> Call[list[dict[str, Any]]]:
        """The memberships of the job, in order, as their events told."""
        return (yield from self._transport.all_of(path_of("jobs", job, "generations")))

    @call
    def checkpoints(self, job: str) -> Call[list[Checkpoint]]:
        """The job's checkpoints, newest first."""
        found = yield from self._transport.all_of(path_of("jobs", job, "checkpoints"))
        return [decode(Checkpoint, item) for item in found]

    @call
    def checkpoint_of(self, checkpoint_id: str) -> Call[Checkpoint]:
        """One checkpoint by its id."""
        return decode(Checkpoint, (yield from self._transport.json("GET", path_of("checkpoints", checkpoint_id))))

    @call
    def pin(self, checkpoint_id: str, *, pinned: bool = True) -> Call[Checkpoint]:
        """Keep a checkpoint whatever the job's retention says, or leave it to that again.

        Raises:
            ApiError: `conflict` (it is being deleted), `storage_unreachable`.
        """
        path = path_of("checkpoints", checkpoint_id)
        body = {"pinned": pinned}
        return decode(Checkpoint, (yield from self._transport.json("PATCH", path, body=body, timeout_s=90.0)))

    @call
    def delete_checkpoint(self, checkpoint_id: str) -> Call[None]:
        """Delete a checkpoint and its files for good.

        Raises:
            ApiError: `conflict` (it is pinned, or a job that has not ended needs it), `storage_unreachable`.
        """
        yield from self._transport.send("DELETE", path_of("checkpoints", checkpoint_id), timeout_s=90.0)

    @call
    def download(self, checkpoint_id: str, name: str, folder: Path, *, sha256: str | None = None) -> Call[Path]:
        """Bring a file of a checkpoint here, whole or not at all.

        Args:
            checkpoint_id: the id, not the folder's name.
            name: of the file, as `Checkpoint.files` has it.
            folder: where to; it must be there.
            sha256: what `Checkpoint.files` says of it; what comes is compared with it.

        Raises:
            UserError: the name is no plain file name, or the folder cannot be written to.
            CheckpointCorrupt: what came has another digest.
            ServiceUnreachable: nothing answers, or what came was cut off.
        """
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"the service names a file {name!r}, which is not a plain name")
        target = folder / name
        try:
            yield from self._transport.download(path_of("checkpoints", checkpoint_id, "files", name), target, sha256)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}; mend that, or name another") from error
        return target


def _read_on(transport: Transport, path: str, after: int, params: dict[str, Any]) -> Flow[dict[str, Any]]:
    """The items after a position, up to now."""
    while True:
        page = yield from transport.json("GET", path, params={**params, "after": after})
        for item in page["items"]:
            yield Item(item)
        if not page["items"]:
            return
        after = max(after, *(int(item["position"]) for item in page["items"]))


def _updates(transport: Transport, job: str, after: int, on_gap: GapListener | None) -> Flow[JobUpdate]:
    def update(message: Message) -> list[JobUpdate]:
        if message.event == "event":
            return [JobUpdate(event=decode(Event, message.data))]
        return [JobUpdate(job=decode(Job, message.data)) if message.event == "job" else JobUpdate()]

    path = path_of("jobs", job, "events")
    return each(transport.stream(path, params={"after": after}, last_id=str(after), on_gap=on_gap), update)


def _searched(earlier: str, end: str) -> float:
    """The part of a log between two positions; its segments are about equally long."""
    first, last = (int(position.partition(":")[0]) for position in (earlier, end))
    return (last - first) / (last + 1)


def _log_filter(
    ranks: tuple[int, ...], attempt: int | None, text: str | None, since: datetime | None
) -> dict[str, Any]:
    return {
        "rank": ",".join(str(rank) for rank in ranks) or None,
        "attempt": attempt,
        "q": text,
        "since": None if since is None else since.isoformat(),
    }
