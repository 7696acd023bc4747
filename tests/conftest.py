"""What every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import watchdog

# Clocks are no part of a property: a busy machine must not fail what holds. And a change is judged by the same examples
# as the one before; `make properties` looks for others.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same examples", shared, derandomize=True)
settings.register_profile("new examples", shared, max_examples=1000, print_blob=True)
settings.load_profile("new examples" if os.environ.get("RUBATO_NEW_EXAMPLES") else "same examples")

# As in a training process (`rubato.launch.environment`): processes of tests share the cores. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Whoever asks Ray something without a Ray would start one in the process of the tests; asked on purpose, it starts.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(watchdog)


@pytest.fixture
def generators() -> Iterator[None]:
    """The global generators begin alike, and are afterwards as they were before."""
    from alone import own_generators  # torch, which not every test needs

    with own_generators():
        yield
