from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.https_server import HttpsServer, https_server
from tests.webhook_hands import HERE

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpsServer]:
    with https_server(tmp_path / "tls") as running:
        yield running


@pytest.fixture
async def bench(make_bench: MakeBench, database_url: str) -> AsyncIterator[Bench]:
    async with make_bench(database_url, webhooks=True, webhook_networks=(HERE,)) as running:
        yield running
