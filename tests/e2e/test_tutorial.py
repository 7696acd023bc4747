"""The tutorial's commands do what they say, typed exactly as they stand, one page after the other, on a real Ray."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from rubato.cli.keeper import control
from rubato.home import Home
from tests.e2e.conftest import ROOT, free_port

PAGES = ("first-job", "own-job", "scale", "failure", "resume", "own-cluster")
EXPECTED = (
    r"succeeded[\s\S]*digest",
    r"mux: unknown field[\s\S]*exit code 1",
    r"1 → 3 workers at step \d+, paused \d+ ms",
    r"exit code 100[\s\S]*user_code_error",
    r"exit code 103",
)
"""Each somewhere in what the commands print."""


def commands(page: str) -> str:
    """The `sh` blocks of a page; `console` blocks need what is not here."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))


def test_every_page_of_the_tutorial_is_tried() -> None:
    folder = ROOT / "docs" / "tutorial"
    assert {path.stem for path in folder.glob("*.md")} == {*PAGES, "README"}
    linked = re.findall(r"\]\(([\w-]+)\.md\)", (folder / "README.md").read_text())
    assert linked == list(PAGES)


@pytest.mark.timeout(900)
@pytest.mark.long
def test_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    port = free_port()
    pages = [(ROOT / "docs" / "tutorial" / f"{name}.md").read_text() for name in PAGES]
    script = "set -euxo pipefail\n" + "\n".join(map(commands, pages)).replace("8642", str(port))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
    own = {"HOME": str(tmp_path), "RUBATO_PORT": str(port)}
    try:
        done = subprocess.run(
            ["bash", "-c", script], env=kept | own, cwd=ROOT, capture_output=True, text=True, timeout=840
        )
    finally:
        control.bring_down(Home(tmp_path / ".rubato"), tell=lambda _: None)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    told = done.stdout + done.stderr
    for pattern in EXPECTED:
        found = re.search(pattern, told)
        assert found, f"nothing like {pattern!r} in\n{told[-8000:]}"
    digests = re.findall(r"\b[0-9a-f]{64}\b", done.stdout)
    assert len(set(digests)) < len(digests), "one worker and three end with the same bits"
