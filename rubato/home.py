"""RUBATO_HOME: the folder that holds the state of one service, and how its address and token are found.

token, cluster-token, ray-token   secrets, 0600
rubato.db, logs/, packages/, checkpoints/   the service's
database-url                       0600: where the database is, if not in rubato.db; may hold a password
storage                            0600: where checkpoints lie, if not in checkpoints/
port                               0600: where the service listens, if not on 8642
login.json                         0600: address and token of a service elsewhere, written by `rubato login URL`
run.json   which processes serve this home right now; there only while it is up
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from rubato.errors import KeeperError
from rubato.wire.codec import to_json

DEFAULT_PORT = 8642
LOG_BYTES = 16 * 1024 * 1024
"""A log that is larger when its process starts is put aside as `.log.1`."""
HOST = "127.0.0.1"
DEFAULT_URL = f"http://{HOST}:{DEFAULT_PORT}"


@dataclass(frozen=True)
class RecordedProcess:
    """A process that cannot be mistaken for another one that got its pid later."""

    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""


@dataclass(frozen=True)
class RunRecord:
    """What `run.json` says: the address of this home's service, and its processes."""

    url: str
    ray_address: str
    ray_temp_dir: str
    started_at: str
    slots: int = 0
    mark: str = ""
    """Value of RUBATO_KEEPER in the environment of each process, so that also one that left the tree is known."""
    boot_id: str = ""
    """With the PID namespace (`process_table.pid_namespace`): a record from before a reboot, or from another container,
    names no process that can be seen here."""
    processes: dict[str, RecordedProcess] = field(default_factory=dict)
    """By role: keeper, ray, service, agent."""
    failures: dict[str, int] = field(default_factory=dict)
    """By role: how often in a row it ended soon after its start."""


@dataclass(frozen=True)
class Login:
    """What `login.json` says: the service that commands go to, and the token for it."""

    url: str
    token: str


@dataclass(frozen=True)
class Home:
    """The files of one RUBATO_HOME."""

    path: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Home:
        """The home that RUBATO_HOME names, else `~/.rubato`."""
        return cls(Path(environment.get("RUBATO_HOME") or "~/.rubato").expanduser().absolute())

    @property
    def token_file(self) -> Path:
        """The admin token; written by the service at its first start."""
        return self.path / "token"

    @property
    def run_file(self) -> Path:
        """Which processes serve this home."""
        return self.path / "run.json"

    @property
    def lock_file(self) -> Path:
        """Held by the keeper while it lives."""
        return self.path / "keeper.lock"

    def log_file(self, role: str) -> Path:
        """Where a process's output goes."""
        return self.path / f"{role}.log"

    def open_log(self, role: str) -> BinaryIO:
        """Open a process's log for appending; nobody else's business, for the service's holds a sign-in code."""
        path = self.log_file(role)
        with contextlib.suppress(OSError):
            if path.stat().st_size > LOG_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def create(self) -> None:
        """Make the folder, for its owner only.

        Raises:
            KeeperError: it cannot be made or written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeeperError(
                f"cannot make the folder {self.path}: {error.strerror}; choose another with RUBATO_HOME"
            ) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise KeeperError(
                f"the folder {self.path} is not writable; mend its owner, or choose another with RUBATO_HOME"
            )

    def read_record(self) -> RunRecord | None:
        """The run record, or None where the home is down or the file is no record."""
        try:
            data = json.loads(self.run_file.read_text())
            processes = {
                role: RecordedProcess(int(entry["pid"]), int(entry["start_time"]))
                for role, entry in data.get("processes", {}).items()
            }
            return RunRecord(
                url=str(data["url"]),
                ray_address=str(data.get("ray_address", "")),
                ray_temp_dir=str(data.get("ray_temp_dir", "")),
                started_at=str(data.get("started_at", "")),
                slots=int(data.get("slots", 0)),
                mark=str(data.get("mark", "")),
                boot_id=str(data.get("boot_id", "")),
                processes=processes,
                failures={str(role): int(count) for role, count in data.get("failures", {}).items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write_record(self, record: RunRecord) -> None:
        """Replace the run record in one stroke: a reader sees the old or the new, never a part."""
        write_atomically(self.run_file, json.dumps(to_json(record), indent=2) + "\n", mode=0o600)

    def keep_database_url(self, named: str | None) -> str | None:
        """The database of this home: the one that is named now, which is remembered, else the one named last.

        Returns: None: none was ever named; the service then uses `rubato.db`.
        """
        return self._keep("database-url", named)

    def keep_storage(self, named: str | None) -> str | None:
        """Where the checkpoints of this home lie, remembered likewise; None: in `checkpoints`."""
        return self._keep("storage", named)

    def keep_port(self, named: int | None) -> int:
        """Where the service of this home listens, remembered likewise; 8642 where no port was ever named."""
        kept = self._keep("port", str(named) if named else None) or ""
        return int(kept) if kept.isascii() and kept.isdigit() else DEFAULT_PORT

    def _keep(self, name: str, named: str | None) -> str | None:
        path = self.path / name
        if named:
            write_atomically(path, named, mode=0o600)
            return named
        try:
            return path.read_text().strip() or None
        except OSError:
            return None

    @property
    def login_file(self) -> Path:
        """Address and token of the service that a person signed in to."""
        return self.path / "login.json"

    def read_login(self) -> Login | None:
        """The service that a person signed in to, or None where there is none or the file is no login."""
        try:
            data = json.loads(self.login_file.read_text())
            return Login(str(data["url"]), str(data["token"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_login(self, login: Login) -> None:
        """Keep it for the next commands; readable by its owner only, from the first byte on."""
        self.create()
        write_atomically(self.login_file, json.dumps(to_json(login), indent=2) + "\n", mode=0o600)

    def forget_login(self) -> bool:
        """Remove it; False where there was none."""
        try:
            self.login_file.unlink()
        except FileNotFoundError:
            return False
        return True

    def read_token(self) -> str | None:
        """The admin token, or None where there is none yet."""
        try:
            return self.token_file.read_text().strip() or None
        except OSError:
            return None


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it into place."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(descriptor, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def find_url(url: str | None, home: Home, environment: Mapping[str, str] = os.environ) -> str:
    """The service's address: given > RUBATO_URL > that of `rubato login` > the home's run.json > its port."""
    found = url or environment.get("RUBATO_URL")
    if not found and (login := home.read_login()):
        found = login.url
    if not found:
        record = home.read_record()
        found = record.url if record else f"http://{HOST}:{home.keep_port(None)}"
    return complete_url(found)


def is_url_named(url: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a person says where the service is: the address that is given, or RUBATO_URL."""
    return bool(url or environment.get("RUBATO_URL"))


def complete_url(url: str) -> str:
    """The address with a scheme and without a slash behind it."""
    found = url.rstrip("/")
    return found if "://" in found else f"http://{found}"


def find_token(
    token: str | None, url: str, home: Home, environment: Mapping[str, str] = os.environ, *, is_named: bool = True
) -> str | None:
    """The bearer token: given > RUBATO_TOKEN > that of `rubato login` > the home's token file.

    The token of a login goes to the address it was given for, and to no other. The file's token opens this home's
    service; it goes to that service or to this machine only, never to a foreign host that someone's `--url` names. It
    goes nowhere while the home is down, unless somebody named the address (`is_named`): whoever listens there then is
    somebody else.
    """
    found = token or environment.get("RUBATO_TOKEN")
    if found:
        return found
    login = home.read_login()
    if login is not None and login.url == complete_url(url):
        return login.token
    record = home.read_record()
    is_own = record is not None and record.url.rstrip("/") == url.rstrip("/")
    if is_own or (is_named and is_loopback(url)):
        return home.read_token()
    return None


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
