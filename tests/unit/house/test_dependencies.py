"""Requirements are bounded, tested releases are named, and an audit that could not be made says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import audit  # noqa: E402
import dependencies  # noqa: E402


def test_what_is_here_holds() -> None:
    wrong, _ = dependencies.find_problems(dependencies.read_extras())
    assert wrong == []


def test_a_requirement_without_an_upper_bound_is_found() -> None:
    bounded = [Requirement(line) for line in ("a>=1,<2", "b==1.2", "c~=1.2")]
    assert dependencies.without_upper_bound([*bounded, Requirement("d>=1"), Requirement("e")]) == ["d>=1", "e"]


def test_a_package_that_does_not_fit_is_found() -> None:
    found = dependencies.installed_closure(
        [Requirement("packaging<1"), Requirement("not-there-at-all>=1,<2"), Requirement("pytest>=1")]
    )
    assert [line.split()[0] for line in found.misfits] == ["not-there-at-all<2,>=1", "pyproject.toml"]
    assert {"packaging", "pytest", "pluggy"} <= set(found.releases)


def test_releases_that_cannot_be_installed_together_are_found() -> None:
    closure = dependencies.installed_closure([Requirement("pytest>=1")])
    assert dependencies.named_misfits(closure, closure.releases) == []
    (found,) = dependencies.named_misfits(closure, {**closure.releases, "pluggy": Version("0.1")})
    assert found.startswith("constraints.txt names pluggy 0.1, and pytest needs pluggy")
    other = {"pytest": Version("1.0"), "pluggy": Version("0.1")}
    assert dependencies.named_misfits(closure, other) == [], "what another release of pytest needs is not known here"


def test_images_install_tested_releases() -> None:
    named = dependencies.read_constraints()
    for extra in ("service", "s3", "train", "cluster"):
        assert {canonicalize_name(one.name) for one in dependencies.read_extras()[extra]} <= set(named)
    for dockerfile in (ROOT / "deploy").glob("Dockerfile.*"):
        text = re.sub(r"\\\n\s*", "", dockerfile.read_text())
        installs = [line for line in text.splitlines() if "pip install" in line]
        assert installs
        assert all("--constraint constraints.txt" in line for line in installs)
        assert re.search(r"COPY .*\bconstraints\.txt\b", text)


def done(stdout: str, stderr: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, stdout, stderr)


ADVISORY = {"name": "old", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (audit.read_pip_audit(done(json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}))), 0),
        (audit.read_pip_audit(done(json.dumps({"dependencies": [ADVISORY]}), code=1)), 1),
        (audit.read_npm_audit(done(json.dumps({"vulnerabilities": {}}))), 0),
        (
            audit.read_npm_audit(
                done(json.dumps({"vulnerabilities": {"x": {"name": "x", "severity": "high", "range": "<2"}}}), code=1)
            ),
            1,
        ),
    ],
)
def test_what_the_auditors_say_is_read(verdict: audit.Verdict, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.tell([verdict], requires_all=True) == code
    assert "SKIPPED" not in capsys.readouterr().out


UNMENDED = {**ADVISORY, "vulns": [{"id": "CVE-2", "fix_versions": []}]}
OF_THE_PAGE = {"name": "x", "severity": "high", "range": "<2"}


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (audit.read_pip_audit(done(json.dumps({"dependencies": [UNMENDED]}), code=1)), 0),
        (audit.read_pip_audit(done(json.dumps({"dependencies": [UNMENDED, ADVISORY]}), code=1)), 1),
        (audit.read_npm_audit(done(json.dumps({"vulnerabilities": {"x": {**OF_THE_PAGE, "fixAvailable": False}}}))), 0),
        (audit.read_npm_audit(done(json.dumps({"vulnerabilities": {"x": {**OF_THE_PAGE, "fixAvailable": True}}}))), 1),
    ],
)
def test_a_change_is_held_up_by_what_can_be_mended_only(
    verdict: audit.Verdict, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.tell([verdict], only_mendable=True) == code
    assert audit.tell([verdict]) == 1
    assert "CVE-2" in (told := capsys.readouterr().out) or "x: high" in told


@pytest.mark.parametrize(
    "verdict",
    [
        audit.read_pip_audit(done("", "ConnectionError: no route", 1)),
        audit.read_pip_audit(None),
        audit.read_npm_audit(done(json.dumps({"message": "405 Method Not Allowed"}), "npm error audit", 1)),
    ],
)
def test_an_audit_that_was_not_made_says_so_loudly(verdict: audit.Verdict, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.tell([verdict], requires_all=False) == 0
    assert "AUDIT SKIPPED" in capsys.readouterr().out
    assert audit.tell([verdict], requires_all=True) == 2
