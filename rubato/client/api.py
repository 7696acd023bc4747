"""`Client` and `AsyncClient`: one method for each thing a person does with the service."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rubato.client.access import AsyncAccess, SyncAccess
from rubato.client.awaiting import AwaitingHands
from rubato.client.blocking import BlockingHands
from rubato.client.conversation import Async, Call, Sync, Work, call
from rubato.client.jobs import Jobs
from rubato.client.models import Cluster, decode
from rubato.client.operations import AsyncOperations, SyncOperations
from rubato.client.paths import path_of
from rubato.client.records import Records
from rubato.client.secrets import AsyncSecrets, SyncSecrets
from rubato.client.transport import Transport, http_options
from rubato.client.webhooks import AsyncWebhooks, SyncWebhooks
from rubato.errors import ApiError, ServiceUnreachable, UserError
from rubato.home import Home, find_token, find_url, is_url_named
from rubato.packaging import PackedFolder, pack_folder

API = "/api/v1"
UPLOAD_TIMEOUT_S = 600.0


class Service(Jobs, Records):
    """What both clients do; each method is a conversation (`rubato.client.conversation`)."""

    def __init__(self, url: str | None, token: str | None, home: Home | None, environment: Mapping[str, str]) -> None:
        home = home or Home.from_environment(environment)
        self.url = find_url(url, home, environment)
        self._transport = Transport(self.url, API)
        self._outside = Transport(self.url)
        token = find_token(token, self.url, home, environment, is_named=is_url_named(url, environment))
        self._options = http_options(self.url, token, environment)

    @call
    def request(self, method: str, path: str, body: Any = None, *, params: dict[str, Any] | None = None) -> Call[Any]:
        """Any route of the API, for what has no method of its own: `client.request("GET", "/jobs/digits/code")`."""
        return (yield from self._transport.json(method, path, body, params=params))

    @call
    def upload(self, package: PackedFolder) -> Call[bool]:
        """Bring a packed folder to the service; False where it was there already."""
        return (yield from _upload(self._transport, package))

    @call
    def upload_folder(self, folder: str | Path) -> Call[str]:
        """Pack a working folder, without what its `.rubatoignore` names, and bring it to the service.

        Returns:
            The SHA-256 that `package` of a spec takes.

        Raises:
            PackageError: it is no folder, or holds a link, a special file, or more than a package may.
        """
        with tempfile.TemporaryDirectory(prefix="rubato-pack-") as scratch:
            target = Path(scratch) / "package.zip"
            package: PackedFolder = yield Work(lambda: pack_folder(Path(folder), target))
            yield from _upload(self._transport, package)
        return package.sha256

    @call
    def clusters(self) -> Call[list[Cluster]]:
        """The clusters that the service knows."""
        found = yield from self._transport.json("GET", "/cluster")
        return [decode(Cluster, item) for item in found["clusters"]]

    @call
    def version(self) -> Call[dict[str, Any]]:
        """Release of the service."""
        return dict((yield from self._transport.json("GET", "/version")))

    @call
    def whoami(self) -> Call[dict[str, Any]]:
        """User and role of the token."""
        return dict((yield from self._transport.json("GET", "/me")))

    @call
    def login_link(self) -> Call[str]:
        """A link that signs a browser in once, within a quarter of an hour."""
        return str((yield from self._transport.json("POST", "/login-links"))["url"])

    @call
    def readiness(self) -> Call[dict[str, Any]]:
        """`status` (ok, degraded, failing) and `checks`, each with `name`, `ok`, `required` and `detail`."""
        return dict((yield from self._outside.send("GET", "/readyz", timeout_s=20.0, accept=(503,))).json())

    @call
    def is_ready(self) -> Call[bool]:
        """Whether the service takes requests; False also where nothing answers."""
        try:
            yield from self._outside.send("GET", "/readyz", timeout_s=5.0)
        except (ServiceUnreachable, ApiError):
            return False
        return True


def _upload(transport: Transport, package: PackedFolder) -> Call[bool]:
    path = path_of("packages", package.sha256)
    if (yield from transport.send("HEAD", path, accept=(404,))).status_code != 404:
        return False
    headers = {"Content-Type": "application/zip", "Content-Length": str(package.packed_bytes)}
    file = Path(package.path)
    yield from transport.send("PUT", path, file=file, headers=headers, timeout_s=UPLOAD_TIMEOUT_S)
    return True


class Client(Service, Sync):
    """The service at one address, with calls that block. Not to be shared between threads.

    Args:
        url: default: RUBATO_URL, else that of `rubato login`, else the address in the home's run.json, else
            http://127.0.0.1:8642.
        token: default: RUBATO_TOKEN, else that of `rubato login` for this address, else the home's token file (for this
            machine's service only).
        home: default: RUBATO_HOME, else ~/.rubato.
        environment: SSL_CERT_FILE or SSL_CERT_DIR names who may have signed the certificate of an https address.
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
        super().__init__(url, token, home, environment)
        try:
            self._http = httpx.Client(**self._options, transport=transport)
        except httpx.InvalidURL as error:
            raise _no_address(self.url, error) from error
        self._hands = BlockingHands(self._http)
        self.access = SyncAccess(self._transport, self._hands)
        self.secrets = SyncSecrets(self._transport, self._hands)
        self.webhooks = SyncWebhooks(self._transport, self._hands)
        self.operations = SyncOperations(self._transport, self._hands)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncClient(Service, Async):
    """The same with calls that are awaited, on asyncio or trio; any number of tasks may share it.

        async with AsyncClient() as client:
            job = await client.submit({"name": "digits", "recipe": "image-classifier"})
            async for event in client.follow_events(job.id):
                print(event.message)

    Args: as for `Client`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Home | None = None,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, home, environment)
        try:
            self._http = httpx.AsyncClient(**self._options, transport=transport)
        except httpx.InvalidURL as error:
            raise _no_address(self.url, error) from error
        self._hands = AwaitingHands(self._http)
        self.access = AsyncAccess(self._transport, self._hands)
        self.secrets = AsyncSecrets(self._transport, self._hands)
        self.webhooks = AsyncWebhooks(self._transport, self._hands)
        self.operations = AsyncOperations(self._transport, self._hands)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _no_address(url: str, error: httpx.InvalidURL) -> UserError:
    return UserError(f"{url!r} is no address ({error}); write it as http://127.0.0.1:8642")
