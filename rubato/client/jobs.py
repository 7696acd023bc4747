"""What people do with jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rubato.client import absence
from rubato.client.conversation import Call, Flow, Sleep, call, each, flow
from rubato.client.models import Explanation, Job, Standing, decode
from rubato.client.paths import path_of
from rubato.client.transport import Transport
from rubato.errors import ApiError, ServiceUnreachable, UserError
from rubato.wire.status import FINAL, Status

WAIT_S = 25.0
"""Seconds a single `?wait=` request asks for; proxies commonly cut idle requests at 30 to 60 s."""

LOOK_S = 5.0
"""The same where the job is shown meanwhile."""


class Jobs:
    """A part of the client: jobs as they are wanted, and where they stand."""

    _transport: Transport

    @call
    def submit(self, spec: dict[str, Any], *, idempotency_key: str | None = None) -> Call[Job]:
        """Submit a job. Sent again with the same key after a lost reply, it makes no second job.

        Raises:
            ApiError: `invalid_spec` with every finding, `name_taken`, `package_unknown`, ...
        """
        return decode(Job, (yield from self._transport.create("/jobs", spec, key=idempotency_key)))

    @call
    def check(self, spec: dict[str, Any]) -> Call[dict[str, Any]]:
        """The spec as the service would take it, with all defaults; nothing is submitted."""
        return dict((yield from self._transport.json("POST", "/jobs", spec, params={"dry_run": "true"}))["spec"])

    @call
    def plan(
        self,
        spec: dict[str, Any],
        profile: dict[str, Any],
        *,
        latency_s: float = 1e-4,
        bytes_per_s: float | None = None,
        links_of: str | None = None,
        noise_scale: float | None = None,
    ) -> Call[dict[str, Any]]:
        """Predicted steps by number of workers and strategy, and what would be best; nothing is submitted.

        Args:
            profile: what `rubato profile` wrote.
            latency_s: until a message between two workers begins to arrive.
            bytes_per_s: of a worker's network port, each way.
            links_of: instead of both, a job of the recipe `measure-links`.
            noise_scale: of the gradients, in samples, as a job like it has charted: other batches are compared.
        """
        body: dict[str, Any] = {"spec": spec, "profile": profile}
        if bytes_per_s is not None:
            body["link"] = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
        if links_of is not None:
            body["links_of"] = links_of
        if noise_scale is not None:
            body["noise_scale"] = noise_scale
        return dict((yield from self._transport.json("POST", "/plan", body)))

    @call
    def job(self, job: str) -> Call[Job]:
        """A job by id, or the newest of a name."""
        return (yield from _read(self._transport, job))

    @flow
    def jobs(
        self,
        *,
        status: tuple[str, ...] = (),
        text: str | None = None,
        limit: int | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
        created_after: str | None = None,
    ) -> Flow[Job]:
        """The jobs, newest first, page by page.

        Args:
            status: only these statuses.
            text: only jobs whose name holds this.
            limit: at most so many; None: all.
            project: only of this project.
            labels: only jobs with all of these.
            created_after: only younger ones: a time such as `2026-01-31T12:00:00Z`.
        """
        params = {
            "status": ",".join(status) or None,
            "q": text,
            "project": project,
            "label": [f"{name}={value}" for name, value in (labels or {}).items()] or None,
            "created_after": created_after,
        }
        yield from each(self._transport.pages("/jobs", params, limit), lambda item: [decode(Job, item)])

    @call
    def scale(self, job: str, workers: int) -> Call[Job]:
        """Ask for another number of workers; the change itself shows as a `generation.formed` event."""
        path = path_of("jobs", job, "scale")
        return decode(Job, (yield from self._transport.create(path, {"workers": workers})))

    @call
    def update(self, job: str, changes: dict[str, Any], *, if_match: str | None = None) -> Call[Job]:
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
            Job, (yield from self._transport.json("PATCH", path_of("jobs", job), body=changes, headers=headers))
        )

    @call
    def clone(
        self,
        job: str,
        overrides: dict[str, Any] | None = None,
        *,
        from_checkpoint: str | None = None,
        idempotency_key: str | None = None,
    ) -> Call[Job]:
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
        path = path_of("jobs", job, "clone")
        return decode(Job, (yield from self._transport.create(path, body, key=idempotency_key)))

    @call
    def delete(self, job: str, *, keep_checkpoints: bool = False, if_match: str | None = None) -> Call[None]:
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
        job_id = job if job.startswith("job_") else (yield from _read(self._transport, job)).id
        params = {"keep_checkpoints": "true"} if keep_checkpoints else {}
        headers = {} if if_match is None else {"If-Match": if_match}
        try:
            (
                yield from self._transport.send(
                    "DELETE", path_of("jobs", job_id), params=params, headers=headers, timeout_s=90.0
                )
            )
        except ServiceUnreachable as error:
            raise ServiceUnreachable(f"{error}; {job_id} may be deleted or not: ask again by this id") from error

    @call
    def pause(self, job: str, *, force: bool = False) -> Call[Job]:
        """Checkpoint, then stop and keep the job for `resume`.

        Args:
            job: id or name.
            force: wait neither for the checkpoint nor for a cluster that is gone: where its controller has been silent
                for two minutes the job is paused, and goes on from its newest checkpoint.
        """
        body = {"force": True} if force else None
        return decode(Job, (yield from self._transport.create(path_of("jobs", job, "pause"), body)))

    @call
    def resume(self, job: str) -> Call[Job]:
        """Queue a paused job again."""
        return decode(Job, (yield from self._transport.create(path_of("jobs", job, "resume"))))

    @call
    def cancel(self, job: str, *, force: bool = False, grace_s: float | None = None) -> Call[Job]:
        """End a job: its workers within a grace (default: `limits.stop_grace`), or with `force` at once."""
        body = {"force": force} | ({} if grace_s is None else {"grace_seconds": grace_s})
        return decode(Job, (yield from self._transport.create(path_of("jobs", job, "cancel"), body)))

    @call
    def checkpoint(self, job: str) -> Call[Job]:
        """Ask for a checkpoint now."""
        return decode(Job, (yield from self._transport.create(path_of("jobs", job, "checkpoint"))))

    @call
    def wait(
        self,
        job: str,
        *,
        statuses: tuple[str, ...] = (),
        timeout_s: float | None = None,
        on_look: Callable[[Job], None] | None = None,
    ) -> Call[Job]:
        """Wait until the job's status is one of `statuses`, or final. After `timeout_s` the job as it then stands.

        Args:
            job: id or name.
            statuses: what is waited for; empty: the end.
            timeout_s: None: however long it takes.
            on_look: called with the job every few seconds until then.

        Raises:
            ServiceUnreachable: no answer for a minute.  UserError: `statuses` names one that no job can have.
        """
        if unknown := [status for status in statuses if status not in set(Status)]:
            raise UserError(f"statuses: {unknown[0]!r} is no status; one of {', '.join(Status)}")
        wanted = {*statuses, *(str(status) for status in FINAL)}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        away = absence.Absence()
        most = WAIT_S if on_look is None else LOOK_S
        while True:
            left = most if deadline is None else min(most, deadline - time.monotonic())
            try:
                found = yield from _read(self._transport, job, wanted if left > 0 else set(), left)
            except (ServiceUnreachable, ApiError) as error:
                if left <= 0:
                    raise
                away.bear(error)
                yield Sleep(absence.AWAY_POLL_S)
                continue
            away.end()
            if found.status in wanted or left <= 0:
                return found
            if on_look is not None:
                on_look(found)

    @call
    def explain(self, job: str) -> Call[Explanation]:
        """Why a job waits, or why it has so many workers."""
        return decode(Explanation, (yield from self._transport.json("GET", path_of("jobs", job, "explain"))))

    @flow
    def queue(self) -> Flow[Standing]:
        """The queued jobs, in their order."""
        yield from each(self._transport.pages("/queue"), lambda item: [decode(Standing, item)])

    @call
    def placed(self) -> Call[list[Standing]]:
        """The jobs that hold slots, since the longest first."""
        found = yield from self._transport.json("GET", "/queue", params={"limit": 1})
        return [decode(Standing, item) for item in found["running"]]


def _read(transport: Transport, job: str, wanted: Collection[str] = (), wait_s: float = 0.0) -> Call[Job]:
    """A job; with `wanted` once it has such a status, or has not within `wait_s`."""
    path = path_of("jobs", job)
    if not wanted:
        return decode(Job, (yield from transport.json("GET", path)))
    asked_at = time.monotonic()
    params = {"wait": f"{wait_s:.1f}", "for": ",".join(sorted(wanted))}
    found = decode(Job, (yield from transport.json("GET", path, params=params, timeout_s=wait_s + 10)))
    if found.status not in wanted and time.monotonic() - asked_at < min(0.5, wait_s):
        yield Sleep(0.5)  # A service that does not wait must not be asked in a tight loop.
    return found
