"""Every environment variable that the code reads or sets is told on the page of the settings, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from rubato.launch import environment
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"(?<![A-Z_])RUBATO_[A-Z_]*[A-Z]")
PREFIXES = {"RUBATO_CLUSTER_TOKEN"}
"""Names of several: what begins so is kept from programs."""


def named_in_the_code() -> set[str]:
    python = [path for folder in ("rubato", "jobs", "service", "api") for path in (ROOT / folder).rglob("*.py")]
    deployed = [ROOT / "docker-compose.yml", *(path for path in (ROOT / "deploy").rglob("*") if path.is_file())]
    return {name for path in (*python, *deployed) for name in NAME.findall(path.read_text())} - PREFIXES


def test_every_variable_is_told_and_no_other() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    service, _, others = page.partition("\n## Variables of client, agent and training process\n")
    told = {name for line in others.splitlines() if line.startswith("| `") for name in NAME.findall(line.split("|")[1])}
    settings = {f"RUBATO_{name.upper()}" for name in Settings.model_fields}
    assert all(f"| `{name}` |" in service for name in settings)
    assert named_in_the_code() - settings - told == set()
    assert told - named_in_the_code() == set()
    for name, value in environment._DEFAULTS.items():
        (line,) = (line for line in others.splitlines() if re.search(rf"`{name}`", line.partition(" | ")[0]))
        assert f"`{value}`" in line
