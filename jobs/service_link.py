"""The service as agents and controllers see it: /cluster/v1 over HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rubato.errors import RubatoError
from rubato.tls import trusted
from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import (
    Acquired,
    AcquireRequest,
    Desired,
    ProcessIdentity,
    Report,
    ReportReply,
    SyncReply,
    SyncRequest,
)
from rubato.wire.codec import from_json, to_json

TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
_CHUNK_BYTES = 1 << 20


class Unreachable(RubatoError):
    """No answer, or one that says to come again later. Never a reason to stop training."""


class Fenced(RubatoError):
    """A newer attempt exists, or this one has ended: exit without touching anything."""


class NotWanted(RubatoError):
    """The job is not to run."""


class Refused(RubatoError):
    """The service does not take the request as it is; sending it again will not help."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class LeaseHeld(RubatoError):
    """The predecessor may still be alive."""

    def __init__(self, attempt: int, process: ProcessIdentity, retry_after_s: float) -> None:
        self.attempt = attempt
        self.process = process
        self.retry_after_s = retry_after_s
        super().__init__(f"attempt {attempt} (pid {process.pid}) may still be alive")


class ServiceLink:
    """One bearer token's view of the service. Every call raises `Unreachable` where nothing sensible answers."""

    def __init__(self, url: str, token: str, *, transport: httpx.BaseTransport | None = None) -> None:
        # trust_env off: a proxy variable of the shell must not catch the token of a service on this machine.
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/cluster/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=trusted(url, os.environ),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self._http.close()

    def sync(self, cluster_id: str, request: SyncRequest) -> SyncReply:
        """Tell the agent's view; hear what should run."""
        reply = self._call("POST", f"/clusters/{cluster_id}/sync", request, wait_s=request.wait)
        return from_json(SyncReply, reply)

    def acquire(self, job_id: str, process: ProcessIdentity, gone: int) -> Acquired:
        """Ask for the next attempt.

        Raises:
            LeaseHeld: the predecessor may still be alive.
            NotWanted: the job is not to run.
        """
        return from_json(
            Acquired, self._call("POST", "/attempts/acquire", AcquireRequest(job_id, WIRE_VERSION, process, gone))
        )

    def report(self, job_id: str, report: Report) -> ReportReply:
        """Hand in a batch.

        Raises:
            Fenced: this attempt no longer counts.
            Refused: the batch does not hold.
        """
        return from_json(ReportReply, self._call("POST", f"/jobs/{job_id}/report", report))

    def desired(self, job_id: str, after: int, wait_s: float) -> Desired:
        """The wishes, once they are newer than `after`, or after the wait.

        Raises:
            Fenced: this attempt no longer counts.
        """
        query = f"/jobs/{job_id}/desired?after={after}&wait={wait_s}"
        return from_json(Desired, self._call("GET", query, wait_s=wait_s))

    def fetch_package(self, sha256: str, target: Path) -> None:
        """Write a package to a file."""
        try:
            with self._http.stream("GET", f"/packages/{sha256}") as response:
                if response.status_code != 200:
                    response.read()
                    raise _error_of(response)
                with target.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK_BYTES):
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise Unreachable(f"the service does not answer: {error}") from error

    def secrets(self, job_id: str) -> dict[str, str]:
        """The secrets of the attempt's job by name.

        Raises:
            Fenced: this attempt no longer counts.
            NotWanted: one of them is not there; the message says what to do.
        """
        reply = self._call("GET", f"/jobs/{job_id}/secrets")
        try:
            return {str(name): str(value) for name, value in reply["secrets"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise Unreachable("what answers at the service's address tells no secrets") from error

    def _call(self, method: str, path: str, body: Any = None, *, wait_s: float = 0.0) -> Any:
        content = None if body is None else encode(body)
        headers = {"Content-Type": "application/json"} if content else {}
        timeout = httpx.Timeout(TIMEOUT_S + wait_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise Unreachable(f"the service does not answer: {error}") from error
        if response.status_code != 200:
            raise _error_of(response)
        try:
            return response.json()
        except ValueError as error:
            raise Unreachable("what answers at the service's address does not speak JSON") from error


def encode(body: Any) -> bytes:
    """As it goes over the wire: in UTF-8, half surrogate pairs as they are."""
    return json.dumps(to_json(body), ensure_ascii=False).encode(errors="surrogatepass")


def _error_of(response: httpx.Response) -> RubatoError:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    text = str(problem.get("detail") or f"HTTP {response.status_code}")
    match response.status_code, problem.get("code"):
        case 409, "fenced":
            return Fenced(text)
        case 409, "lease_held":
            return _lease_held(problem)
        case ((409 | 404), str()):
            return NotWanted(text)
        case 413, _:  # also of a proxy: it is about the size of what was sent
            return Refused(text, 413)
        case status, str() if status < 500 and status not in (408, 429):
            return Refused(text, status)
        case _:  # without a code it is no word of the service, but of a proxy before it
            return Unreachable(text)


def _lease_held(problem: dict[str, Any]) -> RubatoError:
    seen = problem.get("predecessor") or {}
    try:
        process = ProcessIdentity(str(seen["node_id"]), str(seen["boot_id"]), int(seen["pid"]), int(seen["start_time"]))
        return LeaseHeld(int(seen["attempt"]), process, float(problem.get("retry_after", 1.0)))
    except (KeyError, TypeError, ValueError):
        return Unreachable("the lease is held, and the reply does not say by whom")
