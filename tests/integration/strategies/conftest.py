from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import Network, NoNamespaces, network

MOST = 5
"""Workers; fewer leave the others' namespaces empty."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    """Namespaces with large packets, so that headers are few."""
    try:
        with network(workers=MOST) as net:
            net.enlarge_packets()
            yield net
    except NoNamespaces as error:
        pytest.skip(f"the bytes of strategies are NOT measured here: {error}")
