"""Rules about the files themselves: their length, and what they must not name."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAX_LINES = 500
SUFFIXES_OF_TEXT = {
    "", ".cfg", ".css", ".html", ".ini", ".js", ".json", ".mako", ".md", ".py", ".sh", ".toml", ".ts", ".tsx", ".txt",
    ".yaml", ".yml",
}  # fmt: skip


@cache
def tracked_files() -> tuple[Path, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())


def test_no_python_file_is_longer_than_the_limit() -> None:
    files = [path for path in tracked_files() if path.suffix == ".py"]
    assert files
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_tracked_file_names_a_registry_or_a_path_of_one_machine() -> None:
    # Written so that this file does not match itself.
    hosts = (
        r"[a-z0-9.-]*\b(?:pypi\.(?:org|python)|files\.python" + r"hosted|registry\.(?:npmjs|yarnpkg)|download\.pytorch)"
    )
    machine = r"(?<![\w.-])/(?:opt/(?:venv|wheels|pypi)|work/(?:main|shared)|home/[a-z]+|ro" + r"ot)\b"
    forbidden = re.compile(f"{hosts}|{machine}")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in tracked_files()
        if path.suffix in SUFFIXES_OF_TEXT
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if (match := forbidden.search(line))
    ]
    assert found == []


def test_tests_are_packages_only_where_fixtures_end_with_their_folder() -> None:
    """And above, for else the folder of `tests/integration/jobs` would be the package `jobs`."""
    packages = {path.parent for path in tracked_files() if path.name == "__init__.py" and "tests" in path.parts}
    ended = {path.parent for path in tracked_files() if path.name == "conftest.py" and is_ended_with_its_folder(path)}
    assert packages == ended | {above for one in ended for above in one.parents if "tests" in above.parts}


def is_ended_with_its_folder(conftest: Path) -> bool:
    return 'scope="package"' in conftest.read_text()


def test_no_file_is_called_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [path for path in tracked_files() if path.suffix == ".py" and path.stem in vague] == []
