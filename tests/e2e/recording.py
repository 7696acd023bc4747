"""A recording of a terminal, of a real run on a real Ray: `make recording`, or `python -m tests.e2e.recording`.

Types COMMANDS into a terminal and writes what came when: docs/images/session.cast (asciicast v2, for any player) and
docs/images/session.svg, the same as a picture that moves. Waiting is cut to MAX_WAIT_S.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.conftest import ROOT
from tests.e2e.real_home import RealHome, real_home
from tests.e2e.terminal_picture import COLUMNS, ROWS, Event, draw

COMMANDS = (
    "rubato submit --recipe image-classifier --name digits --config epochs=5000",
    "rubato wait digits --for running",
    "rubato scale digits 3 --wait",
    "rubato worker kill digits 1 --wait",
    "rubato logs digits --tail 5",
    "rubato explain digits",
    "rubato worker ls digits",
)
PROMPT = "\x1b[1;32m$\x1b[0m "
KEYS_AT_ONCE = 4
KEYS_S = 0.12
READ_S = 1.8
"""For the viewer to read what a command said."""
END_S = 4.0
MAX_WAIT_S = 0.8
NO_WAIT_BELOW_S = 0.1
"""What comes closer together is one picture."""


def record(home: RealHome) -> Iterator[Event]:
    """What the terminal shows, and when, in seconds from the start."""
    now = 0.0
    for command in COMMANDS:
        yield now, PROMPT
        for first in range(0, len(command), KEYS_AT_ONCE):
            now += KEYS_S
            yield now, command[first : first + KEYS_AT_ONCE]
        now += 2 * KEYS_S
        yield now, "\r\n"
        for wait_s, text in run(command, home):
            now += wait_s
            yield now, text
        now += READ_S
    yield now, PROMPT
    yield now + END_S, ""


def run(command: str, home: RealHome) -> Iterator[tuple[float, str]]:
    """Run in a terminal of its own: each piece of output with the seconds before it, cut where it is long."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    own = {"RUBATO_HOME": str(home.home.path), "TERM": "xterm-256color", "PATH": path, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        ["bash", "-c", command], env=kept | own, cwd=home.home.path, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    waiting, last = "", time.monotonic()
    while True:
        is_there = bool(select.select([master], [], [], NO_WAIT_BELOW_S)[0])
        if is_there:
            try:
                waiting += os.read(master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                is_there = False
                if process.poll() is None:
                    process.wait()
        if waiting and not is_there:
            yield min(time.monotonic() - last, MAX_WAIT_S), waiting
            waiting, last = "", time.monotonic()
        if not is_there and process.poll() is not None:
            break
    os.close(master)
    assert process.returncode == 0, f"{command} ended with {process.returncode}"


def main() -> None:
    """Record, and draw."""
    folder = ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as scratch, real_home(Path(scratch) / "home") as home:
        home.up()
        events = list(record(home))
        home.command("cancel", "digits", "--force")
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Rubato: submit, scale, kill, logs, explain"}
    lines = [json.dumps(header), *(json.dumps([round(at, 2), "o", text]) for at, text in events)]
    (folder / "session.cast").write_text("\n".join(lines) + "\n")
    (folder / "session.svg").write_text(draw(events, title=header["title"]))


if __name__ == "__main__":
    main()
