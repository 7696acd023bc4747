"""What `python -m api` decides before it listens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from api.__main__ import shows_login_link
from service.settings import Settings


@pytest.mark.parametrize(
    ("said", "is_terminal", "shows"),
    [
        ({}, False, True),
        ({"host": "0.0.0.0", "published_on_loopback": True}, False, False),
        ({"host": "0.0.0.0", "published_on_loopback": True}, True, True),
        ({"behind_tls_proxy": True}, True, False),
        ({"behind_tls_proxy": True, "host": "0.0.0.0"}, False, False),
    ],
)
def test_a_login_is_shown_to_who_started_the_service_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: dict[str, object], is_terminal: bool, shows: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert shows_login_link(Settings(home=tmp_path, **said)) is shows  # type: ignore[arg-type]
