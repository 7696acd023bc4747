from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rubato.errors import KeeperError
from rubato.home import (
    DEFAULT_PORT,
    DEFAULT_URL,
    Home,
    RecordedProcess,
    RunRecord,
    find_token,
    find_url,
    write_atomically,
)

RECORD = RunRecord(
    url="http://127.0.0.1:8700",
    ray_address="10.0.0.1:6000",
    ray_temp_dir="/somewhere/rubato-x",
    started_at="2026-01-02T03:04:05+00:00",
    slots=8,
    mark="abc",
    boot_id="boot",
    processes={"keeper": RecordedProcess(10, 100), "ray": RecordedProcess(11, 101)},
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.create()
    return found


def test_the_home_is_for_its_owner_only(home: Home) -> None:
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


def test_a_home_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeeperError, match="RUBATO_HOME"):
        Home(tmp_path / "file" / "home").create()


def test_environment_names_the_home() -> None:
    assert Home.from_environment({"RUBATO_HOME": "/x/y"}).path == Path("/x/y")
    assert Home.from_environment({}).path == Path("~/.rubato").expanduser()
    assert Home.from_environment({"RUBATO_HOME": ""}).path == Path("~/.rubato").expanduser()


def test_record_comes_back_as_it_was_written(home: Home) -> None:
    home.write_record(RECORD)
    assert home.read_record() == RECORD
    assert stat.S_IMODE(home.run_file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"url": 1, "processes": {"ray": 3}}', '{"url": "x", "processes": []}']
)
def test_a_damaged_record_counts_as_none(home: Home, text: str) -> None:
    home.run_file.write_text(text)
    assert home.read_record() is None


def test_a_newer_record_is_read_as_far_as_it_is_known(home: Home) -> None:
    home.run_file.write_text(
        json.dumps({"url": "http://127.0.0.1:1", "new": 1, "processes": {"x": {"pid": 1, "start_time": 2}}})
    )
    record = home.read_record()
    assert record is not None
    assert record.processes == {"x": RecordedProcess(1, 2)}


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomically(target, "old", mode=0o600)

    def no_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, "new", mode=0o600)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("given", "environment", "has_record", "expected"),
    [
        ("http://a:1/", {"RUBATO_URL": "http://b:2"}, True, "http://a:1"),
        (None, {"RUBATO_URL": "http://b:2"}, True, "http://b:2"),
        (None, {}, True, RECORD.url),
        (None, {}, False, DEFAULT_URL),
        ("a:1", {}, False, "http://a:1"),
    ],
)
def test_order_of_addresses(
    home: Home, given: str | None, environment: dict[str, str], has_record: bool, expected: str
) -> None:
    if has_record:
        home.write_record(RECORD)
    assert find_url(given, home, environment) == expected


def test_order_of_tokens(home: Home) -> None:
    home.token_file.write_text("from-file\n")
    assert find_token("given", DEFAULT_URL, home, {"RUBATO_TOKEN": "env"}) == "given"
    assert find_token(None, DEFAULT_URL, home, {"RUBATO_TOKEN": "env"}) == "env"
    assert find_token(None, DEFAULT_URL, home, {}) == "from-file"


@pytest.mark.parametrize(
    "url", ["http://evil.example", "http://127.0.0.1.evil.example", "http://10.0.0.9:8642", "http://localhost.evil"]
)
def test_the_homes_token_never_goes_to_a_foreign_host(home: Home, url: str) -> None:
    home.token_file.write_text("secret")
    assert find_token(None, url, home, {}) is None


def test_the_homes_token_goes_to_nobody_who_was_not_named_while_the_home_is_down(home: Home) -> None:
    home.token_file.write_text("secret")
    assert find_token(None, RECORD.url, home, {}, is_named=False) is None
    home.write_record(RECORD)
    assert find_token(None, RECORD.url, home, {}, is_named=False) == "secret"


def test_a_home_that_is_down_is_looked_for_where_it_listened_last(home: Home) -> None:
    assert home.keep_port(None) == DEFAULT_PORT
    assert home.keep_port(9000) == 9000
    assert home.keep_port(None) == 9000
    assert find_url(None, home, {}) == "http://127.0.0.1:9000"
    (home.path / "port").write_text("nonsense")
    assert home.keep_port(None) == DEFAULT_PORT


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://localhost:8642", "http://[::1]:8642"])
def test_the_homes_token_goes_to_this_machine(home: Home, url: str) -> None:
    home.token_file.write_text("secret")
    assert find_token(None, url, home, {}) == "secret"


def test_a_large_log_is_put_aside_when_its_process_starts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.home.LOG_BYTES", 3)
    for text in (b"old!", b"new"):
        with home.open_log("agent") as log:
            log.write(text)
    assert home.log_file("agent").read_bytes() == b"new"
    assert (home.path / "agent.log.1").read_bytes() == b"old!"
    assert stat.S_IMODE(home.log_file("agent").stat().st_mode) == 0o600
