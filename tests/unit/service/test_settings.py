from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings


def test_defaults_follow_the_home(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert settings.database_url == f"sqlite+aiosqlite:///{tmp_path}/rubato.db"
    assert settings.storage_uri.path == str(tmp_path / "checkpoints")
    assert settings.is_sqlite
    assert settings.is_loopback
    assert (settings.host, settings.port) == ("127.0.0.1", 8642)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUBATO_HOME", str(tmp_path))
    monkeypatch.setenv("RUBATO_PORT", "1234")
    monkeypatch.setenv("RUBATO_ALLOWED_HOSTS", '["service"]')
    settings = Settings()
    assert (settings.home, settings.port, settings.allowed_hosts) == (tmp_path, 1234, ("service",))


@pytest.mark.parametrize("text", ["90", "90.0", "90s", "1m30s", "PT1M30S"])
def test_durations_are_written_as_in_a_spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv("RUBATO_LEASE", text)
    assert Settings(home=tmp_path).lease == timedelta(seconds=90)


@pytest.mark.parametrize("text", ["soon", "-1", "30 parsecs", ""])
def test_what_is_no_duration_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv("RUBATO_LEASE", text)
    with pytest.raises(ValidationError, match="write seconds"):
        Settings(home=tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.2", "rubato.example"])
def test_a_bind_beyond_loopback_needs_a_proxy(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValidationError, match="behind-tls-proxy"):
        Settings(home=tmp_path, host=host)
    assert Settings(home=tmp_path, host=host, behind_tls_proxy=True).host == host
    assert Settings(home=tmp_path, host=host, published_on_loopback=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(tmp_path: Path, host: str) -> None:
    assert Settings(home=tmp_path, host=host).is_loopback


def test_two_ports_of_a_host_have_two_cookies(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).cookie_name == "rubato_session"
    assert Settings(home=tmp_path, port=9000).cookie_name == "rubato_session_9000"


def test_every_setting_is_documented() -> None:
    source = Path("service/settings.py").read_text().splitlines()
    for name in Settings.model_fields:
        index = next(number for number, text in enumerate(source) if text.startswith(f"    {name}: "))
        depth = 0
        while True:
            depth += source[index].count("(") - source[index].count(")")
            index += 1
            if depth == 0:
                break
        assert source[index].strip().startswith('"""'), f"{name} has no docstring"
