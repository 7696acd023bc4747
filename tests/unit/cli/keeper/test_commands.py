from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rubato.cli.keeper import commands
from rubato.errors import KeeperError
from rubato.home import Home


@pytest.fixture
def layout(tmp_path: Path) -> commands.Layout:
    home = Home(tmp_path / "home")
    home.create()
    return commands.Layout(home, port=8700, slots=8, ray_temp_dir=tmp_path / "ray", mark="m1")


def test_ray_gets_a_token_file_of_its_own_before_it_starts(layout: commands.Layout) -> None:
    environment = commands.base_environment(layout, Path("/checkout"), {})
    token_file = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert len(token_file.read_text()) == 64
    again = commands.base_environment(layout, Path("/checkout"), {})
    assert Path(again["RAY_AUTH_TOKEN_PATH"]).read_text() == token_file.read_text()


def test_another_clusters_settings_do_not_leak_in(layout: commands.Layout) -> None:
    shell = {
        "RAY_ADDRESS": "auto",
        "RAY_AUTH_TOKEN": "x",
        "PYTHONPATH": "/mine",
        "PATH": "/bin",
        "RUBATO_HOME": "/other",
    }
    environment = commands.base_environment(layout, Path("/checkout"), shell)
    assert environment["PYTHONPATH"] == "/checkout"
    assert environment["RUBATO_HOME"] == str(layout.home.path)
    assert environment["PATH"] == "/bin"
    assert environment[commands.MARK] == "m1"
    assert "RAY_ADDRESS" not in environment
    assert "RAY_AUTH_TOKEN" not in environment


def test_only_the_service_learns_the_database(layout: commands.Layout) -> None:
    shell = {"RUBATO_DATABASE_URL": "postgresql+psycopg://me:secret@db/rubato"}
    shared = commands.base_environment(layout, Path("/checkout"), shell)
    assert "secret" not in str(shared)
    service = commands.service_environment(layout, shared, shell)
    assert service["RUBATO_DATABASE_URL"] == shell["RUBATO_DATABASE_URL"]
    assert service["RUBATO_PORT"] == "8700"


def test_a_home_keeps_its_database(layout: commands.Layout) -> None:
    def url_of(**shell: str) -> str | None:
        return commands.service_environment(layout, {}, shell).get("RUBATO_DATABASE_URL")

    assert url_of() is None
    for name in ("a", "b"):
        url = f"postgresql+psycopg://me:secret@db/{name}"
        assert url_of(RUBATO_DATABASE_URL=url) == url
        assert url_of() == url, "not an empty SQLite"
    file = layout.home.path / "database-url"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_home_keeps_its_storage(layout: commands.Layout) -> None:
    def storage_of(**shell: str) -> str | None:
        return commands.service_environment(layout, {}, shell).get("RUBATO_STORAGE")

    assert storage_of() is None
    for uri in ("file:///shared/rubato", "s3://bucket/rubato"):
        assert storage_of(RUBATO_STORAGE=uri) == uri
        assert storage_of() == uri, "not checkpoints/ in the home"
    file = layout.home.path / "storage"
    assert file.stat().st_mode & 0o777 == 0o600


def test_two_plans_share_no_port(layout: commands.Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # as where Ray's client server can run
    plans = [commands.plan_ray(layout, {}) for _ in range(2)]
    ports = [
        argument.rsplit("=", 1)[1]
        for plan in plans
        for argument in plan.command
        if argument.startswith(("--port=", "--ray-client-server-port=", "--dashboard-agent-listen-port="))
    ] + [plan.environment["DASHBOARD_METRIC_PORT"] for plan in plans]
    assert len(set(ports)) == 8
    assert plans[0].address.endswith(f":{plans[0].port}")


def test_a_ray_without_its_client_server_gets_no_port_for_it(
    layout: commands.Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not any("client-server" in word for word in commands.plan_ray(layout, {}).command)


def test_ray_is_never_found_by_address_auto_or_ended_by_name(layout: commands.Layout) -> None:
    plan = commands.plan_ray(layout, {})
    words = [*plan.command, *commands.agent_command(layout, plan.address), *commands.service_command()]
    assert "stop" not in words
    assert "auto" not in words
    assert f"--temp-dir={layout.ray_temp_dir}" in words


def test_without_the_service_beside_it_up_says_where_to_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rubato").mkdir()
    monkeypatch.setattr("rubato.__file__", str(tmp_path / "rubato/__init__.py"))
    with pytest.raises(KeeperError, match="checkout"):
        commands.find_checkout()


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KeeperError, match=r"ray is not installed here.*\[cluster\]"):
        commands.find_checkout()


def test_a_small_machine_still_offers_eight_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert commands.default_slots() == 8
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    assert commands.default_slots() == 32
