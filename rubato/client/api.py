"""`Client`: one method for each thing a person does with the service."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from rubato.client.access import Access
from rubato.client.models import (
    Attempt,
    Checkpoint,
    Cluster,
    Event,
    Explanation,
    Job,
    JobUpdate,
    LogLine,
    MetricPoint,
    Standing,
    Worker,
    decode,
)
from rubato.client.operations import Operations
from rubato.client.paths import path_of
from rubato.client.secrets import Secrets
from rubato.client.transport import Transport
from rubato.client.webhooks import Webhooks
from rubato.errors import ApiError, ServiceUnreachable, UserError
from rubato.home import Home, find_token, find_url
from rubato.packaging import PackedFolder
from rubato.wire.status import FINAL

API = "/api/v1"
WAIT_S = 25.0
"""Seconds a single `?wait=` request asks for; proxies commonly cut idle requests at 30 to 60 s."""
UPLOAD_TIMEOUT_S = 600.0
GapListener = Callable[[ServiceUnreachable], None]


class Client:
    """The service at one address.

    Args:
        url: default: RUBATO_URL, else the address in the home's run.json, else http://127.0.0.1:8642.
        token: default: RUBATO_TOKEN, else the home's token file (for this machine's service only).
        home: default: RUBATO_HOME, else ~/.rubato.
        transport: an httpx transport, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Home | None = None,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        home = home or Home.from_environment(environment)
        self.url = find_url(url, home, environment)
        self._transport = Transport(self.url, find_token(token, self.url, home, environment), transport=transport)
        self.access = Access(self._transport, API, self._pages)
        self.secrets = Secrets(self._transport, API, self._pages)
        self.webhooks = Webhooks(self._transport, API, self._pages)
        self.operations = Operations(self._transport, API)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, spec: dict[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Submit a job. Sent again with the same key after a lost reply, it makes no second job.

        Raises:
            ApiError: `invalid_spec` with every finding, `name_taken`, `package_unknown`, ...
        """
        key = idempotency_key or uuid.uuid4().hex
        return decode(Job, self._post("/jobs", spec, headers={"Idempotency-Key": key}))

    def check(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The spec as the service would take it, with all defaults; nothing is submitted."""
        return dict(self._post("/jobs", spec, params={"dry_run": "true"})["spec"])

    def job(self, job: str) -> Job:
        """A job by id, or the newest of a name."""
        return decode(Job, self._get(path_of("jobs", job)))

    def jobs(
        self,
        *,
        status: tuple[str, ...] = (),
        text: str | None = None,
        limit: int | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
        created_after: str | None = None,
    ) -> Iterator[Job]:
        """The jobs, newest first, page by page.

        Args:
            status: only these statuses.
            text: only jobs whose name holds this.
            limit: at most so many; None: all.
            project: only of this project.
            labels: only jobs with all of these.
            created_after: only younger ones: a time such as `2026-01-31T12:00:00Z`.
        """
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            page = self._get(
                "/jobs",
                params={
                    "status": ",".join(status) or None,
                    "q": text,
                    "project": project,
                    "label": [f"{name}={value}" for name, value in (labels or {}).items()] or None,
                    "created_after": created_after,
                    "cursor": cursor,
                    "limit": min(200, left) if left is not None else 200,
                },
            )
            for item in page["items"]:
                yield decode(Job, item)
            left = None if left is None else left - len(page["items"])
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def scale(self, job: str, workers: int) -> Job:
        """Ask for another number of workers; the change itself shows as a `generation.formed` event."""
        return decode(Job, self._post(path_of("jobs", job, "scale"), {"workers": workers}))

    def update(self, job: str, changes: dict[str, Any], *, if_match: str | None = None) -> Job:
        """Change labels, `workers.min` and `max`, `limits` or `scheduling` of a job; training goes on meanwhile.

        Args:
            job: id or name.
            changes: a part of the spec, such as `{"scheduling": {"priority": 80}, "labels": {"old": None}}`; what is
                left out stays, None takes away.
            if_match: `Job.etag` of the job as you read it: refused where somebody changed the job since.

        Raises:
            ApiError: `precondition_failed`, `job_final`, `invalid_spec`, `invalid_request`.
        """
        headers = {} if if_match is None else {"If-Match": if_match}
        return decode(
            Job, self._transport.send_json("PATCH", API + path_of("jobs", job), body=changes, headers=headers)
        )

    def clone(
        self,
        job: str,
        overrides: dict[str, Any] | None = None,
        *,
        from_checkpoint: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Submit a job again.

        Args:
            job: id or name of the old one, whatever its status.
            overrides: a part of the spec that replaces the old job's, such as `{"config": {"lr": 0.01}}`.
            from_checkpoint: id of a checkpoint to begin from, or `latest`.
            idempotency_key: sent again with the same key after a lost reply, it makes no second job.

        Raises:
            ApiError: `invalid_spec`, `name_taken`, `conflict` (there is no checkpoint), ...
        """
        body = {"overrides": overrides or {}, "from_checkpoint": from_checkpoint}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return decode(Job, self._post(path_of("jobs", job, "clone"), body, headers=headers))

    def delete(self, job: str, *, keep_checkpoints: bool = False, if_match: str | None = None) -> None:
        """Delete a job that has ended, with its logs, metrics, events and checkpoints.

        Args:
            job: id or name; where a call failed, repeat it with the id that the error tells: a name then means the job
                before it.
            keep_checkpoints: leave the checkpoints on the storage, where no id leads to them any more.
            if_match: `Job.etag` of the job as you read it: refused where somebody changed the job since.

        Raises:
            ApiError: `conflict` (it has not ended, or a checkpoint is needed or pinned), `precondition_failed`,
                `storage_unreachable`.
            ServiceUnreachable: no answer; it may be deleted all the same.
        """
        # By its id: a request that a proxy sends again must not mean another job.
        job_id = job if job.startswith("job_") else self.job(job).id
        params = {"keep_checkpoints": "true"} if keep_checkpoints else {}
        headers = {} if if_match is None else {"If-Match": if_match}
        try:
            self._transport.send(
                "DELETE", API + path_of("jobs", job_id), params=params, headers=headers, timeout_s=90.0
            )
        except ServiceUnreachable as error:
            raise ServiceUnreachable(f"{error}; {job_id} may be deleted or not: ask again by this id") from error

    def pause(self, job: str) -> Job:
        """Checkpoint, then stop and keep the job for `resume`."""
        return decode(Job, self._post(path_of("jobs", job, "pause")))

    def resume(self, job: str) -> Job:
        """Queue a paused job again."""
        return decode(Job, self._post(path_of("jobs", job, "resume")))

    def cancel(self, job: str, *, force: bool = False, grace_s: float | None = None) -> Job:
        """End a job: its workers within a grace (default: `limits.stop_grace`), or with `force` at once."""
        body = {"force": force} | ({} if grace_s is None else {"grace_seconds": grace_s})
        return decode(Job, self._post(path_of("jobs", job, "cancel"), body))

    def checkpoint(self, job: str) -> Job:
        """Ask for a checkpoint now."""
        return decode(Job, self._post(path_of("jobs", job, "checkpoint")))

    def wait(self, job: str, *, statuses: tuple[str, ...] = (), timeout_s: float | None = None) -> Job:
        """Wait until the job's status is one of `statuses`, or final. After `timeout_s` the job as it then stands."""
        wanted = {*statuses, *(str(status) for status in FINAL)}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = WAIT_S if deadline is None else min(WAIT_S, deadline - time.monotonic())
            found = self.job(job) if left <= 0 else self._wait_once(job, wanted, left)
            if found.status in wanted or left <= 0:
                return found

    def explain(self, job: str) -> Explanation:
        """Why a job waits, or why it has so many workers."""
        return decode(Explanation, self._get(path_of("jobs", job, "explain")))

    def queue(self) -> Iterator[Standing]:
        """The queued jobs, in their order."""
        cursor: str | None = None
        while True:
            page = self._get("/queue", params={"cursor": cursor, "limit": 200})
            yield from (decode(Standing, item) for item in page["items"])
            cursor = page["next_cursor"]
            if not cursor:
                return

    def placed(self) -> list[Standing]:
        """The jobs that hold slots, since the longest first."""
        return [decode(Standing, item) for item in self._get("/queue", params={"limit": 1})["running"]]

    def _wait_once(self, job: str, wanted: set[str], seconds: float) -> Job:
        asked_at = time.monotonic()
        reply = self._get(
            path_of("jobs", job),
            params={"wait": f"{seconds:.1f}", "for": ",".join(sorted(wanted))},
            timeout_s=seconds + 10,
        )
        found = decode(Job, reply)
        if found.status not in wanted and time.monotonic() - asked_at < min(0.5, seconds):
            time.sleep(0.5)  # A service that does not wait must not be asked in a tight loop.
        return found

    # --- what a job did -----------------------------------------------------------------------------------------------

    def workers(self, job: str) -> list[Worker]:
        """The workers of a job, by rank."""
        return [decode(Worker, item) for item in self._get(path_of("jobs", job, "workers"))["items"]]

    def events(self, job: str, *, after: int = 0) -> Iterator[Event]:
        """The events after a position, up to now."""
        while True:
            page = self._get(path_of("jobs", job, "events"), params={"after": after, "limit": 500})
            yield from (decode(Event, item) for item in page["items"])
            if not page["items"]:
                return
            after = max(after, *(int(item["position"]) for item in page["items"]))

    def follow(self, job: str, *, after: int = 0, on_gap: GapListener | None = None) -> Iterator[JobUpdate]:
        """The job's live stream: every event after a position, and the job at each change; ends with the job.

        An update without either comes every few seconds while nothing happens.
        """
        messages = self._transport.stream(
            API + path_of("jobs", job, "events"), params={"after": after}, last_id=str(after), on_gap=on_gap
        )
        for message in messages:
            if message.event == "event":
                yield JobUpdate(event=decode(Event, message.data))
            elif message.event == "job":
                yield JobUpdate(job=decode(Job, message.data))
            else:
                yield JobUpdate()

    def follow_events(self, job: str, *, after: int = 0, on_gap: GapListener | None = None) -> Iterator[Event]:
        """The job's events as they happen; ends with the job."""
        for update in self.follow(job, after=after, on_gap=on_gap):
            if update.event is not None:
                yield update.event

    def metrics(self, job: str, *, after: int = 0, names: tuple[str, ...] = ()) -> Iterator[MetricPoint]:
        """The committed steps after a position, up to now."""
        while True:
            page = self._get(
                path_of("jobs", job, "metrics"),
                params={"after": after, "names": ",".join(names) or None, "limit": 1000},
            )
            yield from (decode(MetricPoint, item) for item in page["items"])
            if not page["items"]:
                return
            after = max(after, *(int(item["position"]) for item in page["items"]))

    def chart(
        self, job: str, *, names: tuple[str, ...] = (), max_points: int = 1000, x: str = "step"
    ) -> dict[str, dict[str, list[float]]]:
        """Each metric as `x` and `y`, thinned out to `max_points` in which the extremes stay.

        Args:
            job: id or name.
            names: only these metrics; empty: all.
            max_points: of each metric, at most; 10 to 20,000.
            x: `step`, or `time` (seconds since 1970).
        """
        params = {"names": ",".join(names) or None, "max_points": max_points, "x": x}
        return dict(self._get(path_of("jobs", job, "metrics", "chart"), params=params)["series"])

    def logs(
        self,
        job: str,
        *,
        ranks: tuple[int, ...] = (),
        attempt: int | None = None,
        tail: int | None = None,
        text: str | None = None,
        since: datetime | None = None,
    ) -> list[LogLine]:
        """The job's newest log lines, oldest first: `tail` of them, or all of a time (aware) and later."""
        params: dict[str, Any] = {**_log_filter(ranks, attempt, text, since), "tail": tail}
        page = self._get(path_of("jobs", job, "logs"), params=params)
        items = list(page["items"])
        while page.get("has_more"):
            page = self._get(path_of("jobs", job, "logs"), params={**params, "after": page["next"]})
            items += page["items"]
        return [decode(LogLine, item) for item in items]

    def follow_logs(
        self,
        job: str,
        *,
        ranks: tuple[int, ...] = (),
        attempt: int | None = None,
        tail: int | None = None,
        text: str | None = None,
        since: datetime | None = None,
        on_gap: GapListener | None = None,
    ) -> Iterator[LogLine]:
        """The lines of `logs`, then every line as it is written; ends with the job."""
        params = {**_log_filter(ranks, attempt, text, since), "tail": tail}
        for message in self._transport.stream(API + path_of("jobs", job, "logs"), params=params, on_gap=on_gap):
            if message.event == "log":
                yield from (decode(LogLine, item) for item in message.data["items"])

    def attempts(self, job: str) -> list[Attempt]:
        """The lives of the job's controller, in order."""
        return [decode(Attempt, item) for item in self._pages(path_of("jobs", job, "attempts"))]

    def generations(self, job: str) -> list[dict[str, Any]]:
        """The memberships of the job, in order, as their events told."""
        return list(self._pages(path_of("jobs", job, "generations")))

    def checkpoints(self, job: str) -> list[Checkpoint]:
        """The job's checkpoints, newest first."""
        return [decode(Checkpoint, item) for item in self._pages(path_of("jobs", job, "checkpoints"))]

    def checkpoint_of(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint by its id."""
        return decode(Checkpoint, self._get(path_of("checkpoints", checkpoint_id)))

    def pin(self, checkpoint_id: str, *, pinned: bool = True) -> Checkpoint:
        """Keep a checkpoint whatever the job's retention says, or leave it to that again.

        Raises:
            ApiError: `conflict` (it is being deleted), `storage_unreachable`.
        """
        path = API + path_of("checkpoints", checkpoint_id)
        return decode(Checkpoint, self._transport.send_json("PATCH", path, body={"pinned": pinned}, timeout_s=90.0))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Delete a checkpoint and its files for good.

        Raises:
            ApiError: `conflict` (it is pinned, or a job that has not ended needs it), `storage_unreachable`.
        """
        self._transport.send("DELETE", API + path_of("checkpoints", checkpoint_id), timeout_s=90.0)

    def download(self, checkpoint_id: str, name: str, folder: Path) -> Path:
        """Bring a file of a checkpoint here. `checkpoint_id` is the id, not the folder's name.

        Raises:
            UserError: the name is no plain file name, or the folder cannot be written to.
        """
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"the service names a file {name!r}, which is not a plain name")
        target = folder / name
        self._transport.download(API + path_of("checkpoints", checkpoint_id, "files", name), target)
        return target

    # --- packages, service --------------------------------------------------------------------------------------------

    def upload(self, package: PackedFolder) -> bool:
        """Bring a packed folder to the service; False where it was there already."""
        path = API + path_of("packages", package.sha256)
        if self._transport.send("HEAD", path, accept=(404,)).status_code != 404:
            return False
        with Path(package.path).open("rb") as content:
            self._transport.send(
                "PUT",
                path,
                content=content,
                headers={"Content-Type": "application/zip", "Content-Length": str(package.packed_bytes)},
                timeout_s=UPLOAD_TIMEOUT_S,
            )
        return True

    def clusters(self) -> list[Cluster]:
        """The clusters that the service knows."""
        return [decode(Cluster, item) for item in self._get("/cluster")["clusters"]]

    def version(self) -> dict[str, Any]:
        """Release of the service."""
        return dict(self._get("/version"))

    def whoami(self) -> dict[str, Any]:
        """User and role of the token."""
        return dict(self._get("/me"))

    def login_link(self) -> str:
        """A link that signs a browser in once, within a quarter of an hour."""
        return str(self._post("/login-links")["url"])

    def readiness(self) -> dict[str, Any]:
        """`status` (ok, degraded, failing) and `checks`, each with `name`, `ok`, `required` and `detail`."""
        return dict(self._transport.send("GET", "/readyz", timeout_s=20.0, accept=(503,)).json())

    def is_ready(self) -> bool:
        """Whether the service takes requests; False also where nothing answers."""
        try:
            self._transport.send("GET", "/readyz", timeout_s=5.0)
        except (ServiceUnreachable, ApiError):
            return False
        return True

    # --- raw ----------------------------------------------------------------------------------------------------------

    def _get(self, path: str, **options: Any) -> Any:
        return self._transport.send_json("GET", API + path, **options)

    def _pages(self, path: str, params: dict[str, Any] | None = None) -> Iterator[Any]:
        """The items of all pages."""
        cursor: str | None = None
        while True:
            page = self._get(path, params={**(params or {}), "cursor": cursor, "limit": 200})
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def _post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self._transport.send_json("POST", API + path, body=body, **options)


def _log_filter(
    ranks: tuple[int, ...], attempt: int | None, text: str | None, since: datetime | None
) -> dict[str, Any]:
    return {
        "rank": ",".join(str(rank) for rank in ranks) or None,
        "attempt": attempt,
        "q": text,
        "since": None if since is None else since.isoformat(),
    }
