"""Requests, problem documents and event streams, as conversations."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from rubato.client.conversation import Call, Close, Flow, Item, NextLine, NextPiece, Open, Request, Sleep
from rubato.errors import (
    ApiError,
    ApiForbidden,
    ApiNotFound,
    ApiUnauthenticated,
    CheckpointCorrupt,
    RubatoError,
    ServiceUnreachable,
)
from rubato.tls import trusted

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
KEEP_ALIVE = "keep-alive"
"""A comment or an id without data, passed on so that a reader's own deadlines are looked at while nothing happens."""
STREAM_SILENCE_S = 35.0
"""A stream without a byte for so long is dead: the service sends a keep-alive every 10 s."""
RATE_ATTEMPTS = 4
"""Of a request that the service refuses because there are too many: it says when to come again."""
RATE_WAIT_MAX_S = 10.0
AWAY_STATUSES = (502, 503, 504)
"""Replies of a proxy whose service is away, or of a service that starts."""
KINDS: dict[int, type[ApiError]] = {401: ApiUnauthenticated, 403: ApiForbidden, 404: ApiNotFound}
"""Of refusals, by status."""
RETRY_INITIAL_S = 0.25
RETRY_MAX_S = 5.0


@dataclass(frozen=True)
class Message:
    """One server-sent event."""

    event: str
    data: Any
    id: str | None = None


def http_options(url: str, token: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """How an httpx client, of either kind, is made for a service; raises as `trusted` does."""
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": url,
        "headers": headers,
        "timeout": httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        # A proxy variable of the shell must not catch the token of a service on this machine.
        "trust_env": False,
        "verify": trusted(url, environment),
    }


def options_of(request: Request) -> dict[str, Any]:
    """A request as httpx takes it."""
    return {
        "method": request.method,
        "url": request.path,
        "params": {key: value for key, value in request.params.items() if value is not None},
        "json": request.body,
        "headers": request.headers,
        "timeout": timeout_of(request),
    }


def timeout_of(request: Request) -> httpx.Timeout:
    """Seconds for a reply, and for a connection."""
    return httpx.Timeout(request.timeout_s, connect=CONNECT_TIMEOUT_S)


@dataclass(frozen=True)
class Transport:
    """Conversations with one service, whose paths begin with `root`."""

    url: str
    root: str = ""

    def send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: Any = None,
        file: Path | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
        accept: tuple[int, ...] = (),
    ) -> Call[httpx.Response]:
        """One request; statuses of 300 and more raise, except those in `accept`.

        Raises:
            ServiceUnreachable: nothing answers.
            ApiError: the service refused it, or answered with something else than expected.
        """
        request = Request(method, self.root + path, params or {}, body, file, headers or {}, timeout_s)
        for attempt in range(RATE_ATTEMPTS):
            try:
                response: httpx.Response = yield request
            except httpx.TransportError as error:
                raise unreachable(self.url, error) from error
            # Refused before anything was done.
            if response.status_code != 429 or file is not None or attempt + 1 == RATE_ATTEMPTS:
                break
            yield Sleep(_retry_after_s(response))
        if response.status_code >= 300 and response.status_code not in accept:
            raise refusal(response)
        return response

    def json(self, method: str, path: str, body: Any = None, **options: Any) -> Call[Any]:
        """One request whose reply is JSON."""
        response = yield from self.send(method, path, body=body, **options)
        try:
            return response.json()
        except ValueError as error:
            kind = response.headers.get("content-type", "no content type")
            raise ApiError(
                f"{method} {self.url}{self.root}{path} answered with {kind}, not JSON; "
                "is this address a Rubato service?",
                status=response.status_code,
            ) from error

    def create(self, path: str, body: Any = None, *, key: str | None = None, **options: Any) -> Call[Any]:
        """A POST under a key: sent again after a lost reply it answers as the first time, and does nothing twice."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        try:
            return (yield from self.json("POST", path, body=body, headers=headers, **options))
        except ServiceUnreachable as error:
            if isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                raise
        return (yield from self.json("POST", path, body=body, headers=headers, **options))

    def pages(self, path: str, params: dict[str, Any] | None = None, limit: int | None = None) -> Flow[Any]:
        """The items of all pages, or `limit` of them."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = 200 if left is None else min(200, left)
            page = yield from self.json("GET", path, params={**(params or {}), "cursor": cursor, "limit": size})
            for item in page["items"]:
                yield Item(item)
            left = None if left is None else left - len(page["items"])
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def all_of(self, path: str, params: dict[str, Any] | None = None) -> Call[list[Any]]:
        """The items of all pages at once."""
        found = []
        cursor: str | None = None
        while True:
            page = yield from self.json("GET", path, params={**(params or {}), "cursor": cursor, "limit": 200})
            found += page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return found

    def download(self, path: str, target: Path, sha256: str | None = None) -> Call[None]:
        """One reply into a file, without holding it in memory; what is cut off or damaged leaves no file.

        Args:
            sha256: of the bytes, in hex; None: it is not known.

        Raises:
            ServiceUnreachable: nothing answers, or the reply was cut off.
            ApiError: the service refused it.
            CheckpointCorrupt: it has another digest.
            OSError: the file cannot be written.
        """
        part, digest = target.with_name(f"{target.name}.part"), hashlib.sha256()
        try:
            response = yield Open(Request("GET", self.root + path, timeout_s=READ_TIMEOUT_S))
            if response.status_code >= 300:
                raise refusal(response)
            with part.open("wb") as file:
                while (piece := (yield NextPiece())) is not None:
                    file.write(piece)
                    digest.update(piece)
            if sha256 is not None and digest.hexdigest() != sha256:
                raise CheckpointCorrupt(
                    f"{target.name} came with other bytes than its checkpoint names (SHA-256 {digest.hexdigest()}, "
                    f"expected {sha256}); download it again, and where that does not help take another checkpoint"
                )
            part.replace(target)
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def stream(
        self,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        last_id: str | None = None,
        give_up_after_s: float = 60.0,
        on_gap: Callable[[ServiceUnreachable], None] | None = None,
    ) -> Flow[Message]:
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
                yield from self._connect(path, params or {}, last_id)
                parser = MessageParser()
                while (line := (yield NextLine())) is not None:
                    message = parser.feed(line)
                    if message is None:
                        continue
                    silent_since, wait_s = None, RETRY_INITIAL_S
                    last_id = message.id or last_id
                    if message.event == "end":
                        return
                    yield Item(message)
            except httpx.TransportError as error:
                lost = unreachable(self.url, error)
            except ApiError as error:
                if error.status not in (429, *AWAY_STATUSES):
                    raise
                lost = ServiceUnreachable(str(error))
            else:
                lost = None
            yield Close()
            now = time.monotonic()
            if lost is not None:
                silent_since = silent_since or now
                if now - silent_since > give_up_after_s:
                    raise lost
                if on_gap is not None:
                    on_gap(lost)
            yield Sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)

    def _connect(self, path: str, params: dict[str, Any], last_id: str | None) -> Call[None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        request = Request("GET", self.root + path, params, headers=headers, timeout_s=STREAM_SILENCE_S)
        response = yield Open(request)
        if response.status_code >= 300:
            raise refusal(response)


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), RATE_WAIT_MAX_S) if text.isdecimal() else 1.0


class LineSplitter:
    """Cuts text where lines of an event stream end; what str.splitlines cuts at besides, such as U+2028, is text."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The lines that the text completes. A return at its end may be half of a line's end, and waits."""
        *lines, self._rest = re.split(r"\r\n|\n|\r(?!\Z)", self._rest + text)
        return lines


class MessageParser:
    """Reads the text/event-stream format line by line; data is JSON. What the end cuts off is dropped."""

    def __init__(self) -> None:
        self._event = "message"
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, line: str) -> Message | None:
        """The message that the line completes, if it does."""
        if not line:
            event, data, identity = self._event, self._data, self._id
            self._event, self._data, self._id = "message", [], None
            if not data:
                return Message(KEEP_ALIVE, None, identity) if identity else None
            return Message(event, _parse("\n".join(data)), identity)
        if line.startswith(":"):
            return Message(KEEP_ALIVE, None)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        return None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ApiError(f"the stream sent a message that is not JSON: {text[:80]!r}") from error


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    """The error for a service that does not answer."""
    cause = str(error) or type(error).__name__
    if (doubt := _doubt_of(error)) is not None:
        return ServiceUnreachable(
            f"the certificate of {url} is not to be trusted ({doubt}); where an authority of your own signed it, name "
            "the file of that authority's certificate in SSL_CERT_FILE"
        )
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return ServiceUnreachable(
            f"{url} did not answer in time ({cause}); what was asked for may be done or not: look before you ask again"
        )
    return ServiceUnreachable(
        f"nothing answers at {url} ({cause}); start the service with `rubato up`, "
        "or name another address with --url or RUBATO_URL"
    )


def _doubt_of(error: BaseException) -> str | None:
    """What is wrong with the certificate of the other side, where that is why there is no connection."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__  # httpcore hides its cause
    return None if cause is None else cause.verify_message.rstrip(".")


def is_away(error: RubatoError) -> bool:
    """Whether the service did not answer this time, and may the next time."""
    return isinstance(error, ServiceUnreachable) or (isinstance(error, ApiError) and error.status in AWAY_STATUSES)


def refusal(response: httpx.Response) -> ApiError:
    """The error for a reply of 300 and more."""
    if response.has_redirect_location:
        target = response.headers["Location"]
        return ApiError(f"{response.url} redirects to {target}; use that address", status=response.status_code)
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    status = response.status_code
    fallback = f"{response.reason_phrase or 'error'} ({status})"
    message = describe_problem(problem) or fallback
    if status == HTTPStatus.UNAUTHORIZED:
        # Perhaps it was not the one that was meant.
        message = f"{response.url.scheme}://{response.url.netloc.decode()} does not let you in: {message}"
    return KINDS.get(status, ApiError)(message, status=status, problem=problem)


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
