from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato.cli.keeper import control
from rubato.home import Home
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    home = Home(tmp_path / "home")
    yield Shell(home)
    control.bring_down(home, tell=lambda _: None)
