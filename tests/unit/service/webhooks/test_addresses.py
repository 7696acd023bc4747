from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network

import pytest

from service.errors import ServiceError
from service.webhooks.addresses import ForbiddenAddress, check_url, find_addresses, is_allowed

CLOSED = (ip_network("10.1.2.0/24"), ip_network("fd00:1::/64"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
        ),
        *("192.0.0.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00::1", "ff02::1", "ff0e::1", "2001:db8::1"),
        # IPv4 within IPv6.
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a00:1::",
        ),
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        # Deprecated, and still led somewhere by some systems: site-local, and IPv4-compatible.
        *("fec0::1", "feff::1", "::7f00:1", "::a9fe:a9fe", "::8.8.8.8"),
        *("4000::1", "100::1"),
    ],
)
def test_what_is_not_public_is_not_allowed(text: str) -> None:
    assert not is_allowed(ip_address(text), ())


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public_is(text: str) -> None:
    assert is_allowed(ip_address(text), ())


def test_named_networks_are_allowed_and_no_others() -> None:
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5"):
        assert is_allowed(ip_address(text), CLOSED)
    for text in ("10.1.3.3", "fd00:2::5", "127.0.0.1"):
        assert not is_allowed(ip_address(text), CLOSED)


@pytest.mark.parametrize(
    "url",
    [
        *("http://a.example/", "ftp://a.example/", "//a.example/", "a.example", "", "https://", "https:///x"),
        *(
            "https://user:password@a.example/",
            "https://user@a.example/",
            "https://a.example/#x",
            "https://a.example:0/",
        ),
        *(
            "https://a.example:99999/",
            "https://[::1/",
            "https://a.example/ x",
            "https://a.example/\n",
            "https://ä.example/",
        ),
        *("https://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/latest", "https://a.example\\@b.example/"),
        f"https://a.example/{'x' * 2000}",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ServiceError, match="The url "):
        check_url(url, CLOSED)


@pytest.mark.parametrize(
    "url", ["https://a.example", "https://a.example:8443/x?y=z", "https://8.8.8.8/", "https://10.1.2.3/"]
)
def test_urls_that_are_taken(url: str) -> None:
    check_url(url, CLOSED)


def test_one_forbidden_address_forbids_the_name() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return {"good": ["8.8.8.8", "8.8.8.8", "1.1.1.1"], "mixed": ["8.8.8.8", "10.0.0.1"], "zone": ["fe80::1%eth0"]}[
            host
        ]

    async def find(host: str) -> list[str]:
        return await find_addresses(host, 443, CLOSED, resolve)

    assert asyncio.run(find("good")) == ["8.8.8.8", "1.1.1.1"]
    for host in ("mixed", "zone"):
        with pytest.raises(ForbiddenAddress, match=f"{host} leads to "):
            asyncio.run(find(host))
