"""Requests, problem documents and event streams over one httpx client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rubato.errors import ApiError, ApiNotFound, ApiUnauthenticated, ServiceUnreachable, UserError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
KEEP_ALIVE = "keep-alive"
"""A comment in the stream, passed on so that a reader's own deadlines are looked at while nothing happens."""
STREAM_SILENCE_S = 35.0
"""A stream without a byte for so long is dead: the service sends a keep-alive every 10 s."""
RATE_ATTEMPTS = 4
"""Of a request that the service refuses because there are too many: it says when to come again."""
RATE_WAIT_MAX_S = 10.0
RETRY_INITIAL_S = 0.25
RETRY_MAX_S = 5.0


Pages = Callable[[str, dict[str, Any] | None], Iterator[Any]]
"""Gives the items of all pages of a path."""


@dataclass(frozen=True)
class Message:
    """One server-sent event."""

    event: str
    data: Any
    id: str | None = None


class Transport:
    """One service, one token. Not safe to share between threads while a stream is read."""

    def __init__(self, url: str, token: str | None, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # trust_env off: a proxy variable of the shell must not catch the token of a service on this machine.
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                # Loading the certificates takes longer than most requests. Plain HTTP uses none, and httpx is not told
                # to follow redirects, so nothing can lead from here to an unchecked TLS connection.
                verify=not self.url.startswith("http://"),
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise UserError(f"{url!r} is no address ({error}); write it as http://127.0.0.1:8642") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: Any = None,
        content: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
        accept: tuple[int, ...] = (),
    ) -> httpx.Response:
        """One request; statuses of 400 and more raise, except those in `accept`.

        Raises:
            ServiceUnreachable: nothing answers.
            ApiError: the service refused it, or answered with something else than expected.
        """
        timeout = httpx.Timeout(timeout_s or READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        for attempt in range(RATE_ATTEMPTS):
            try:
                response = self._http.request(
                    method,
                    path,
                    params={key: value for key, value in (params or {}).items() if value is not None},
                    json=body,
                    content=content,
                    headers=headers,
                    timeout=timeout,
                )
            except httpx.TransportError as error:
                raise unreachable(self.url, error) from error
            # Refused before anything was done. What is read from a file cannot be sent again.
            if response.status_code != 429 or content is not None or attempt + 1 == RATE_ATTEMPTS:
                break
            time.sleep(_retry_after_s(response))
        if response.status_code >= 400 and response.status_code not in accept:
            raise refusal(response)
        return response

    def send_json(self, method: str, path: str, **options: Any) -> Any:
        """One request whose reply is JSON."""
        response = self.send(method, path, **options)
        try:
            return response.json()
        except ValueError as error:
            kind = response.headers.get("content-type", "no content type")
            raise ApiError(
                f"{method} {self.url}{path} answered with {kind}, not JSON; is this address a Rubato service?",
                status=response.status_code,
            ) from error

    def download(self, path: str, target: Path) -> None:
        """One reply into a file, without holding it in memory.

        Raises:
            ServiceUnreachable: nothing answers, or the reply was cut off.
            ApiError: the service refused it.
        """
        try:
            with self._http.stream("GET", path, timeout=httpx.Timeout(READ_TIMEOUT_S)) as response:
                if response.status_code >= 400:
                    response.read()
                    raise refusal(response)
                with target.open("wb") as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def stream(
        self,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        last_id: str | None = None,
        give_up_after_s: float = 60.0,
        on_gap: Callable[[ServiceUnreachable], None] | None = None,
    ) -> Iterator[Message]:
        """The messages of an event stream; reconnects with Last-Event-ID, so that none is lost or doubled.

        Ends with the service's `end` message. The service closes each connection after some minutes, and may restart:
        both are reconnects.

        Raises:
            ServiceUnreachable: no connection for `give_up_after_s`.
            ApiError: the service refused the stream.
        """
        wait_s = RETRY_INITIAL_S
        silent_since: float | None = None
        lost: ServiceUnreachable | None
        while True:
            try:
                for message in self._stream_once(path, params or {}, last_id):
                    silent_since, wait_s = None, RETRY_INITIAL_S
                    last_id = message.id or last_id
                    if message.event == "end":
                        return
                    yield message
            except httpx.TransportError as error:
                lost = unreachable(self.url, error)
            except ApiError as error:
                if error.status not in (429, 502, 503, 504):
                    raise
                lost = ServiceUnreachable(str(error))
            else:
                lost = None
            now = time.monotonic()
            if lost is not None:
                silent_since = silent_since or now
                if now - silent_since > give_up_after_s:
                    raise lost
                if on_gap is not None:
                    on_gap(lost)
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)

    def _stream_once(self, path: str, params: dict[str, Any], last_id: str | None) -> Iterator[Message]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        timeout = httpx.Timeout(STREAM_SILENCE_S, connect=CONNECT_TIMEOUT_S)
        query = {key: value for key, value in params.items() if value is not None}
        with self._http.stream("GET", path, params=query, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
                raise refusal(response)
            yield from read_messages(response.iter_lines())


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), RATE_WAIT_MAX_S) if text.isdecimal() else 1.0


def read_messages(lines: Iterator[str]) -> Iterator[Message]:
    """Parse the text/event-stream format; data is JSON. A message cut off by the end of the stream is dropped."""
    event = "message"
    data: list[str] = []
    identity: str | None = None
    for line in lines:
        if not line:
            if data:
                yield Message(event, _parse("\n".join(data)), identity)
            event, data, identity = "message", [], None
            continue
        if line.startswith(":"):
            yield Message(KEEP_ALIVE, None)
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            identity = value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ApiError(f"the stream sent a message that is not JSON: {text[:80]!r}") from error


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    """The error for a service that does not answer."""
    cause = str(error) or type(error).__name__
    return ServiceUnreachable(
        f"nothing answers at {url} ({cause}); start the service with `rubato up`, "
        "or name another address with --url or RUBATO_URL"
    )


def refusal(response: httpx.Response) -> ApiError:
    """The error for a reply of 400 and more."""
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    status = response.status_code
    fallback = f"{response.reason_phrase or 'error'} ({status})"
    message = describe_problem(problem) or fallback
    kind = ApiUnauthenticated if status in (401, 403) else ApiNotFound if status == 404 else ApiError
    return kind(message, status=status, problem=problem)


def describe_problem(problem: dict[str, Any]) -> str:
    """What went wrong, each finding on a line of its own, and none told twice."""
    title, detail = str(problem.get("title") or ""), str(problem.get("detail") or "")
    findings = [error for error in problem.get("errors") or [] if isinstance(error, dict)]
    lines = [f"{error.get('path', '')}: {error.get('message', '')}".lstrip(": ") for error in findings]
    if len(lines) == 1 and findings[0].get("path") and str(findings[0]["path"]) in detail:
        return detail
    if lines and title and all(line in detail for line in lines):
        detail = title
    return "\n  ".join([detail or title, *lines])
