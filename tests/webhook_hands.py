"""Hands for tests of webhooks: add some, deliver what is due to a real server, and see what came of it."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from service.webhooks.addresses import Resolve
from service.webhooks.dispatch import Dispatcher
from service.webhooks.sending import Sender
from tests.https_server import HOST, HttpsServer

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

HERE = ip_network("127.0.0.1/32")
WEBHOOKS = "/projects/default/webhooks"


class Names:
    """A resolver that answers as told; the last answer stays."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        assert host == HOST
        self.asked += 1
        return [self.answers[min(self.asked, len(self.answers)) - 1]]


def dispatcher(bench: Bench, server: HttpsServer, names: Resolve | None = None, **options: Any) -> Dispatcher:
    # A busy machine is no part of these tests.
    sender = Sender((HERE,), server.ca_file, resolve=names or Names("127.0.0.1"), **{"timeout_s": 120.0, **options})
    return Dispatcher(bench.context, sender)


async def add(bench: Bench, server: HttpsServer, *events: str, name: str = "team", path: str = "/hook") -> str:
    body = {"name": name, "url": server.url(path), "events": list(events)}
    return str((await bench.post(WEBHOOKS, 201, body))["secret"])


async def deliveries(bench: Bench, name: str = "team", **filters: Any) -> list[dict[str, Any]]:
    return list((await bench.get(f"{WEBHOOKS}/{name}/deliveries", **filters))["items"])


def kinds(server: HttpsServer, path: str = "/hook") -> list[str]:
    return [json.loads(one.body)["type"] for one in server.received if one.path == path]
