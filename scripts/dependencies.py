"""Dependencies, as far as they can be judged without a network: part of `make check`.

Every requirement has an upper bound, what is installed fits together, and `constraints.txt` names one tested release of
everything that is installed from a package index, directly or not; set-up and images are made with it. What advisories
say is another question, and needs the network: `make audit`.

    python scripts/dependencies.py [--check]      without --check: write constraints.txt from what is installed
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("train", "cli", "service", "cluster", "s3", "recipes", "examples", "dev")
"""Those that `make setup` installs, and the tests run with."""
TITLE = (
    "# One release of each package with which all tests passed; written by `make deps-fix`.\n"
    "#   pip install -c constraints.txt '.[service]'\n"
)


def read_extras() -> dict[str, list[Requirement]]:
    """The requirements of pyproject.toml by extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {extra: [Requirement(line) for line in lines] for extra, lines in project["optional-dependencies"].items()}
    return found | {"": [Requirement(line) for line in project["dependencies"]]}


def without_upper_bound(requirements: Iterable[Requirement]) -> list[str]:
    """Those that tomorrow's release could break."""
    return [
        str(one)
        for one in requirements
        if not any(clause.operator in ("<", "<=", "==", "~=") for clause in one.specifier)
    ]


@dataclass(frozen=True)
class Closure:
    """What some requirements need here, directly or not."""

    releases: dict[str, Version]
    """By name; of everything that is installed."""
    asked: list[tuple[str, Requirement]]
    """Who needs what: a name, or `pyproject.toml`."""
    misfits: list[str]
    """What is not installed, or in a release that does not fit."""


def installed_closure(requirements: Iterable[Requirement]) -> Closure:
    """What these need, as far as it is installed here."""
    releases: dict[str, Version] = {}
    asked: list[tuple[str, Requirement]] = []
    misfits: list[str] = []
    waiting = [(one, "pyproject.toml") for one in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted, by = waiting.pop()
        if wanted.marker is not None and not any(
            wanted.marker.evaluate({"extra": extra}) for extra in ("", *_extras_of(by))
        ):
            continue
        name = canonicalize_name(wanted.name)
        asked.append((_name_of(by), wanted))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            misfits.append(f"{wanted} (of {_name_of(by)}) is not installed")
            continue
        version = Version(distribution.version)
        # A local part (2.13.0+cpu) says who built it, not what it is.
        releases[name] = Version(version.public)
        if not wanted.specifier.contains(version, prereleases=True):
            misfits.append(f"{_name_of(by)} needs {wanted}, and {version} is installed")
        if (name, frozenset(wanted.extras)) not in seen:
            seen.add((name, frozenset(wanted.extras)))
            by_whom = f"{name}[{','.join(sorted(wanted.extras))}]"
            waiting += [(Requirement(line), by_whom) for line in distribution.requires or []]
    return Closure(releases, asked, sorted(set(misfits)))


def named_misfits(closure: Closure, named: dict[str, Version]) -> list[str]:
    """What of constraints.txt cannot be installed together, as far as the releases that are installed here can tell."""
    return sorted(
        {
            f"constraints.txt names {wanted.name} {named[name]}, and {by} needs {wanted}; `make deps-fix`"
            for by, wanted in closure.asked
            if (name := canonicalize_name(wanted.name)) in named
            and named.get(by) == closure.releases.get(by)
            and not wanted.specifier.contains(named[name], prereleases=True)
        }
    )


def render(releases: dict[str, Version]) -> str:
    """The content of constraints.txt."""
    return TITLE + "".join(f"{name}=={version}\n" for name, version in sorted(releases.items()))


def read_constraints() -> dict[str, Version]:
    """What constraints.txt names."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {name: Version(version) for name, version in pairs}


def find_problems(extras: dict[str, list[Requirement]]) -> tuple[list[str], list[str]]:
    """What is wrong, and what should be known."""
    everything = [one for requirements in extras.values() for one in requirements]
    wrong = [f"{name} has no upper bound" for name in without_upper_bound(everything)]
    closure = installed_closure(one for extra in ("", *EXTRAS) for one in extras[extra])
    releases = closure.releases
    named = read_constraints() if CONSTRAINTS.exists() else {}
    wrong += closure.misfits
    wrong += [f"{name} is not in constraints.txt; `make deps-fix`" for name in sorted(releases.keys() - named.keys())]
    wrong += named_misfits(closure, named)
    notes = [
        f"{name} {version} is installed here; constraints.txt names {named[name]}"
        for name, version in sorted(releases.items())
        if name in named and named[name] != version
    ]
    return wrong, notes


def _name_of(by: str) -> str:
    return by.partition("[")[0]


def _extras_of(by: str) -> list[str]:
    return by.partition("[")[2].rstrip("]").split(",")


def main(arguments: list[str]) -> int:
    """0: all is well, or written."""
    extras = read_extras()
    if "--check" not in arguments:
        closure = installed_closure(one for extra in ("", *EXTRAS) for one in extras[extra])
        CONSTRAINTS.write_text(render(closure.releases))
        return 0
    wrong, notes = find_problems(extras)
    for note in notes:
        print(f"note: {note}")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
