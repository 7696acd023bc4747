from __future__ import annotations

import io
from pathlib import Path

import pytest

from rubato.cli.exits import ExitCode
from rubato.home import DEFAULT_URL, Home, Login, find_token, find_url
from tests.unit.cli.fake_service import FakeService, Reply, Rubato

ME = {"user": "ada", "role": "user", "projects": {"default": "editor"}}


@pytest.fixture
def signed_out(monkeypatch: pytest.MonkeyPatch, rubato: Rubato) -> Rubato:
    """Neither address nor token in the environment."""
    monkeypatch.delenv("RUBATO_URL")
    monkeypatch.delenv("RUBATO_TOKEN")
    return rubato


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_login_is_tried_kept_used_and_forgotten(
    service: FakeService, signed_out: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on("GET", "/me", ME)
    type_in(monkeypatch, "rbt_ada\n")
    assert signed_out("login", service.url + "/", "--json").json == {"url": service.url, **ME}
    file = tmp_path / "home" / "login.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert signed_out("login", "--check").out == f"{service.url} as ada (user)\n"
    assert service.requests[-1].headers["Authorization"] == "Bearer rbt_ada"
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_other")
    assert signed_out("login", "--check").code == 0
    assert service.requests[-1].headers["Authorization"] == "Bearer rbt_other"
    assert signed_out("logout", "--json").json == {"url": service.url, "logged_out": True}
    assert not file.exists()
    assert "no login to forget" in signed_out("logout").err


def test_a_token_that_is_refused_is_not_kept(
    service: FakeService, signed_out: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on("GET", "/me", Reply({"detail": "This token is not known."}, status=401))
    type_in(monkeypatch, "rbt_wrong")
    done = signed_out("login", service.url)
    assert done.code == ExitCode.AUTH
    assert "nothing was kept" in done.err
    assert not (tmp_path / "home" / "login.json").exists()


def test_a_token_of_no_person_is_told_as_that(
    service: FakeService, signed_out: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"detail": "This needs the role admin or user; yours is cluster."}
    service.on("GET", "/me", Reply(refused, status=403))
    type_in(monkeypatch, "rbt_agent")
    done = signed_out("login", service.url)
    told = " ".join(done.err.split())
    assert done.code == ExitCode.AUTH
    assert "yours is cluster" in told
    assert "rubato token create NAME --user USER" in told
    assert "does not know" not in told
    assert "Sign in with `rubato login" not in told, "that advice is for those without a token"
    assert not (tmp_path / "home" / "login.json").exists()


@pytest.mark.parametrize(
    ("set_here", "unset"),
    [
        ({}, None),
        ({"RUBATO_TOKEN": "rbt_ada"}, None),
        ({"RUBATO_URL": "http://other:1"}, "RUBATO_URL"),
        ({"RUBATO_TOKEN": "rbt_other"}, "RUBATO_TOKEN"),
        ({"RUBATO_URL": "other:1", "RUBATO_TOKEN": "rbt_other"}, "RUBATO_URL RUBATO_TOKEN"),
    ],
)
def test_what_comes_before_a_login_is_told(
    service: FakeService,
    signed_out: Rubato,
    monkeypatch: pytest.MonkeyPatch,
    set_here: dict[str, str],
    unset: str | None,
) -> None:
    service.on("GET", "/me", ME)
    for name, value in set_here.items():
        monkeypatch.setenv(name, value)
    type_in(monkeypatch, "rbt_ada")
    told = signed_out("login", service.url).err
    assert ("all commands go there" in told) == (unset is None)
    assert (f"`unset {unset}`" in told) == (unset is not None)
    url = "http://other:1" if "RUBATO_URL" in set_here else service.url
    assert (f"commands go to {url}" in told) == (unset is not None)
    assert ("with another token" in told) == ("rbt_other" in set_here.values())


@pytest.mark.parametrize(("text", "advice"), [("", "stdin is empty"), ("two words", "rubato token create")])
def test_what_is_no_token_is_not_sent(
    service: FakeService, signed_out: Rubato, monkeypatch: pytest.MonkeyPatch, text: str, advice: str
) -> None:
    type_in(monkeypatch, text)
    assert advice in signed_out("login", service.url).err
    assert service.requests == []


def test_the_token_of_a_login_goes_to_its_address_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write_login(Login("https://rubato.example", "rbt_x"))
    assert find_url(None, home, {}) == "https://rubato.example"
    assert find_url(None, home, {"RUBATO_URL": "http://b:2"}) == "http://b:2"
    assert find_token(None, "https://rubato.example/", home, {}) == "rbt_x"
    for other in ("https://rubato.example.evil", "http://rubato.example", DEFAULT_URL):
        assert find_token(None, other, home, {}) is None
    home.login_file.write_text("[]")
    assert find_url(None, home, {}) == DEFAULT_URL
