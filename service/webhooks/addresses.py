"""Where a webhook may lead: https to a public address, or into a network that the operator named.

A name is resolved once for each try; the answer is checked, and the connection goes to that very address. So a name
that answers otherwise the second time (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from service.errors import ErrorKind, ServiceError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Gives the addresses of a host name. Raises OSError: there are none."""

MAX_URL_CHARS = 2000
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenAddress(Exception):
    """A webhook leads where it may not; the message says why."""


def check_url(url: str, networks: Sequence[Network]) -> None:
    """Refuse what is no https address of a host, and addresses (not names) that are not allowed.

    Raises:
        ServiceError: invalid_request.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refused(f"is no address ({error})") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not is_plain or len(url) > MAX_URL_CHARS:
        raise _refused(f"must be plain text of at most {MAX_URL_CHARS} characters")
    if parts.scheme != "https":
        raise _refused("must begin with https://")
    if not host or parts.username is not None or parts.password is not None or parts.fragment or port == 0:
        raise _refused("must be https://HOST[:PORT]/PATH, without user, password and fragment")
    address = _parse(host)
    if address is not None and not is_allowed(address, networks):
        raise _refused(f"leads to {address}; {_ADVICE}")


async def find_addresses(host: str, port: int, networks: Sequence[Network], resolve: Resolve) -> list[str]:
    """The addresses to connect to, the first one first.

    Raises:
        ForbiddenAddress: one of the name's addresses is not allowed.
        OSError: the name has none.
    """
    found = await resolve(host, port)
    for text in found:
        address = _parse(text)
        if address is None or not is_allowed(address, networks):
            raise ForbiddenAddress(f"{host} leads to {text}; {_ADVICE}")
    if not found:
        raise OSError(f"{host} has no address")
    return list(dict.fromkeys(found))


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether an address is public, or in one of these networks; of one that stands for another, that one counts."""
    meant = _meant_by(address)
    if any(meant.version == network.version and meant in network for network in networks):
        return True
    # Python counts site-local and IPv4-compatible addresses as global; the latter are among the reserved ones.
    is_old = isinstance(meant, ipaddress.IPv6Address) and meant.is_site_local
    return meant.is_global and not (meant.is_multicast or meant.is_reserved or is_old)


def _meant_by(address: Address) -> Address:
    """The IPv4 address within an IPv6 address that leads to it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1] or address


def _parse(text: str) -> Address | None:
    try:
        # Without the zone of a link-local address, which is refused either way.
        return ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return None


_ADVICE = "only public addresses are allowed, and networks that the service's operator names in RUBATO_WEBHOOK_NETWORKS"


def _refused(why: str) -> ServiceError:
    return ServiceError(ErrorKind.INVALID_REQUEST, f"The url {why}.")
