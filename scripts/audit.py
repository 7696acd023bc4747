"""Known advisories against what is installed: `make audit`, and a part of `make check`.

It needs the network: where a database cannot be reached it says loudly what was skipped. A change is not held up by
what nobody can mend yet: `make check` fails for advisories that a release mends, a release for all.

    python scripts/audit.py [--require | --mendable]
        --require   what was skipped is a failure, too: before a release
        --mendable  what no release mends is told, and is no failure: in `make check`
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIP_AUDIT = "pip-audit>=2.7,<3"
PATIENCE_S = 300


@dataclass(frozen=True)
class Advisory:
    """Against one package."""

    text: str
    is_mendable: bool
    """There is a release without it."""


@dataclass(frozen=True)
class Verdict:
    """Of one audit."""

    what: str
    findings: tuple[Advisory, ...] = ()
    skipped: str = ""
    """Why nothing is known; empty: it was done."""


def audit_python() -> Verdict:
    """pip-audit, in an environment of its own: what it needs must not change what is audited."""
    what = "Python packages"
    with tempfile.TemporaryDirectory(prefix="rubato-audit-") as folder:
        python = Path(folder) / "bin" / "python"
        venv.create(folder, with_pip=True)
        made = _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PIP_AUDIT])
        if made is None or made.returncode != 0:
            return Verdict(what, skipped="pip-audit cannot be installed here")
        paths = [path for path in sys.path if path.endswith("site-packages")]
        command = [str(python), "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "20"]
        return read_pip_audit(_run([*command, "--path", paths[0]]))


def audit_page() -> Verdict:
    """npm audit, over the lock file."""
    npm = shutil.which("npm", path=str(Path(sys.executable).parent)) or shutil.which("npm")
    if npm is None:
        return Verdict("packages of the page", skipped="there is no npm")
    return read_npm_audit(_run([npm, "audit", "--json", "--audit-level=low"], cwd=ROOT / "web"))


def read_pip_audit(done: subprocess.CompletedProcess[str] | None) -> Verdict:
    """What it said: JSON on stdout, also where it found something (exit code 1)."""
    what, data = "Python packages", _json_of(done)
    if not isinstance(data, dict) or "dependencies" not in data:
        return Verdict(what, skipped=_why(done))
    return Verdict(what, tuple(_advisory(one, found) for one in data["dependencies"] for found in one.get("vulns", [])))


def _advisory(package: dict[str, Any], found: dict[str, Any]) -> Advisory:
    mended_in = ", ".join(found["fix_versions"])
    text = f"{package['name']} {package['version']}: {found['id']}, mended in {mended_in or 'no release'}"
    return Advisory(text, bool(mended_in))


def read_npm_audit(done: subprocess.CompletedProcess[str] | None) -> Verdict:
    """What it said: a report with `vulnerabilities`, else an error of the registry."""
    what, data = "packages of the page", _json_of(done)
    if not isinstance(data, dict) or "vulnerabilities" not in data:
        return Verdict(what, skipped=_why(done))
    found = data["vulnerabilities"].values()
    return Verdict(
        what,
        tuple(
            Advisory(f"{one['name']}: {one['severity']} ({one['range']})", bool(one.get("fixAvailable")))
            for one in found
        ),
    )


def tell(verdicts: list[Verdict], *, requires_all: bool = False, only_mendable: bool = False) -> int:
    """Print them; the exit code."""
    for verdict in verdicts:
        if verdict.skipped:
            print(f"AUDIT SKIPPED: {verdict.what}: {verdict.skipped}. Nothing is known of their advisories.")
        elif verdict.findings:
            print(f"{verdict.what}: {len(verdict.findings)} advisories")
            print("".join(f"  {found.text}\n" for found in verdict.findings), end="")
        else:
            print(f"{verdict.what}: no known advisory")
    if any(found.is_mendable or not only_mendable for verdict in verdicts for found in verdict.findings):
        return 1
    return 2 if requires_all and any(verdict.skipped for verdict in verdicts) else 0


def _run(command: list[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return None


def _json_of(done: subprocess.CompletedProcess[str] | None) -> Any:
    try:
        return None if done is None else json.loads(done.stdout)
    except ValueError:
        return None


def _why(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return f"no answer within {PATIENCE_S} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return (
        f"the database of advisories does not answer ({lines[-1][:150] if lines else f'exit code {done.returncode}'})"
    )


if __name__ == "__main__":
    flags = {"requires_all": "--require" in sys.argv, "only_mendable": "--mendable" in sys.argv}
    sys.exit(tell([audit_python(), audit_page()], **flags))
