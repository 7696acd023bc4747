"""Generated parts of the documents are current, and what the documents point to exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("script", ["status_diagram", "scheduling_trace", "plan_example"])
def test_generated_parts_are_current(script: str) -> None:
    command = [sys.executable, f"scripts/{script}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_images_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    for name in re.findall(r"`(tests/[\w/.-]+\.py)(?:::\w+)?`", page.read_text()):
        assert (ROOT / name).is_file(), name
    for name, function in re.findall(r"`(tests/[\w/.-]+\.py)::(\w+)`", page.read_text()):
        assert re.search(rf"def {function}\b", (ROOT / name).read_text()), f"{name}::{function}"


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    assert named
    assert named <= targets
