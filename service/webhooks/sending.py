"""One try of a delivery: a signed POST over a connection of its own, within bounds of time and size."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from standardwebhooks import Webhook as Signer

from rubato.errors import UserError
from service.webhooks.addresses import ForbiddenAddress, Network, Resolve, find_addresses
from service.webhooks.lookups import Lookups, resolve_by_system

TIMEOUT_S = 10.0
"""For all of it: resolve, connect, send, and wait for the status."""
CONNECT_S = 4.0
"""Then the next of the name's addresses is tried."""


@dataclass(frozen=True)
class Parcel:
    """What is sent, and where."""

    message_id: str
    """The same in each try: by it a receiver knows what it has got before."""
    project: str
    """Whose lookups its own counts among."""
    url: str
    body: str


@dataclass(frozen=True)
class Sent:
    """What came of a try."""

    status: int | None
    """Of the reply; None: there was none."""
    error: str = ""
    """Why it does not count as delivered, in a sentence; empty: it does."""


class Sender:
    """Sends parcels.

    Args:
        networks: where webhooks may lead besides public addresses.
        ca_file: authorities that are trusted besides the system's.
        resolve: finds the addresses of a host.
        timeout_s: for a whole try.

    Raises:
        UserError: the file holds no certificates.
    """

    def __init__(
        self,
        networks: Sequence[Network] = (),
        ca_file: Path | None = None,
        *,
        resolve: Resolve = resolve_by_system,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._networks = tuple(networks)
        self._lookups = Lookups(resolve)
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            try:
                self._tls.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise UserError(f"RUBATO_WEBHOOK_CA_FILE: {ca_file} holds no certificates ({error})") from error

    def has_room(self, project: str) -> bool:
        """Whether a project may have another try; without it waits for lookups that it has left behind."""
        return self._lookups.has_room(project)

    async def send(self, parcel: Parcel, secret: str, now: datetime) -> Sent:
        """Try once. Whatever goes wrong is in what comes back."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._post(parcel, signed_headers(parcel, secret, now))
        except TimeoutError:
            return Sent(None, f"There was no answer within {self._timeout_s:g} s.")
        except ForbiddenAddress as error:
            return Sent(None, f"It was not sent: {error}.")
        except (OSError, UnicodeError, httpx.HTTPError, httpx.InvalidURL) as error:
            return Sent(None, f"The connection failed: {str(error)[:300] or type(error).__name__}.")
        if 200 <= status < 300:
            return Sent(status)
        if 300 <= status < 400:
            return Sent(status, f"It answered with a redirect ({status}), and none is followed.")
        return Sent(status, f"It answered with {status}.")

    async def _post(self, parcel: Parcel, headers: dict[str, str]) -> int:
        """The status of the reply, from the first of the host's addresses that takes a connection."""
        parts = urlsplit(parcel.url)
        resolve = partial(self._lookups.find, parcel.project)
        found = await find_addresses(parts.hostname or "", parts.port or 443, self._networks, resolve)
        *others, last = found
        for address in others:
            try:
                return await self._post_to(address, parcel, headers, connect_s=CONNECT_S)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._post_to(last, parcel, headers, connect_s=None)

    async def _post_to(self, address: str, parcel: Parcel, headers: dict[str, str], *, connect_s: float | None) -> int:
        parts = urlsplit(parcel.url)
        # To the address that was checked; certificate and Host are those of the name. Each try has a connection of its
        # own: a pool knows connections by their address, and would lend one name's to another's.
        timeout = httpx.Timeout(None, connect=connect_s)
        async with (
            httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False, timeout=timeout) as client,
            client.stream(
                "POST",
                httpx.URL(parcel.url).copy_with(host=address),
                headers={**headers, "Host": parts.netloc},
                content=parcel.body.encode(),
                extensions={"sni_hostname": parts.hostname},
            ) as response,
        ):
            # The status is all that counts: nothing of the reply's body is read, however long it is.
            return response.status_code


def signed_headers(parcel: Parcel, secret: str, now: datetime) -> dict[str, str]:
    """By the Standard Webhooks scheme: the receiver checks who sent it, that it is whole, and that it is fresh.

    Args:
        parcel: what is sent.
        secret: `whsec_...`.
        now: aware and UTC.
    """
    return {
        "Content-Type": "application/json",
        "User-Agent": "Rubato",
        "webhook-id": parcel.message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Signer(secret).sign(parcel.message_id, now, parcel.body),
    }
