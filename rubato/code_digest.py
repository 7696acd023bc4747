"""A digest of the program that a worker runs: of all its own modules, not only of the one that has the entrypoint.

A module is the program's own when it lies in the program's folder (that of its main file, or the working folder), and
not among installed packages. Which of them count follows from the files: those that are loaded, and those that any of
these names in an import statement, also in one that no line has reached yet. So a module that is imported in the
thousandth step counts from the start, and workers of equal files agree wherever they stand.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import site
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from rubato.engine.saver import versions

_FOREIGN = frozenset({*sys.stdlib_module_names, "rubato"})
"""Not the user's code; what workers say to each other has a version of its own."""


class ProgramCode:
    """The files of one program. Each is read once, as soon as it is known: somebody may be editing it.

    Args:    main: the module that has the entrypoint.
    """

    def __init__(self, main: ModuleType) -> None:
        file = _file_of(main)
        is_foreign = main.__name__.partition(".")[0] in _FOREIGN  # a recipe
        folders = [Path.cwd()] if file is None or is_foreign else [_folder_of(main.__name__, file), Path.cwd()]
        self._folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self._read: dict[Path, str] = {}
        if file is not None:
            self._take(file, _package_of(main))
        self._take_loaded()

    def _take_loaded(self) -> None:
        loaded = list(sys.modules.items())
        # By the package, too: compilers register what they generate, wherever it lies, below their own.
        own = {name for name, module in loaded if "." not in name and name not in _FOREIGN and self._has(module)}
        for name, module in loaded:
            if name.partition(".")[0] in own and (file := _file_of(module)) is not None and self._is_own(file):
                self._take(file, _package_of(module))

    def _has(self, top: ModuleType) -> bool:
        places = [_file_of(top), *(Path(path).resolve() for path in getattr(top, "__path__", ()))]
        return any(place is not None and self._is_own(place) for place in places)

    def files(self) -> dict[str, str]:
        """SHA-256 of each file by its path in the program's folder, with what was loaded since the last look."""
        self._take_loaded()
        return {self._relative(file): digest for file, digest in sorted(self._read.items())}

    def digest(self) -> str:
        """Of all files, and of the versions of what the bits depend on besides."""
        return hashlib.sha256(json.dumps([self.files(), versions()], sort_keys=True).encode()).hexdigest()[:16]

    def _take(self, file: Path, package: str) -> None:
        """Read a file, and those that its import statements lead to."""
        found = [(file, package)]
        while found:
            file, package = found.pop()
            if file in self._read:
                continue
            source = file.read_bytes() if file.is_file() else b""
            self._read[file] = hashlib.sha256(source).hexdigest()
            if file.suffix == ".py":
                found += [one for name in _imported(source, package) for one in self._locate(name)]

    def _locate(self, name: str) -> Iterator[tuple[Path, str]]:
        """Files, with their packages, that are loaded for a module of this name; nothing of other people's."""
        path: Any = None
        parts = name.split(".")
        if parts[0] in _FOREIGN:
            return
        for depth in range(1, len(parts) + 1):
            here = ".".join(parts[:depth])
            spec = PathFinder.find_spec(here, path)
            if spec is None:
                return
            if spec.has_location and spec.origin is not None:
                file = Path(spec.origin).resolve()
                if not self._is_own(file):
                    return
                yield file, spec.parent or ""
            path = spec.submodule_search_locations
            if path is None:
                return

    def _is_own(self, file: Path) -> bool:
        """Whether a file belongs to the program."""
        if not any(file.is_relative_to(folder) for folder in self._folders):
            return False
        return not any(file.is_relative_to(folder) for folder in _foreign_folders())

    def _relative(self, file: Path) -> str:
        folder = next((folder for folder in self._folders if file.is_relative_to(folder)), file.parent)
        return file.relative_to(folder).as_posix()


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _folder_of(name: str, file: Path) -> Path:
    """From which a module is imported: above its package, where it is in one."""
    depth = name.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def _package_of(module: ModuleType) -> str:
    """What relative imports of a module start from; nothing for a program's main file."""
    named = getattr(module, "__package__", None)
    return named if isinstance(named, str) else ""


@functools.cache
def _foreign_folders() -> list[Path]:
    """Where the standard library, installed packages and Rubato itself lie."""
    paths = sysconfig.get_paths()
    named = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    named += [*site.getsitepackages(), site.getusersitepackages()]
    return [*(Path(path).resolve() for path in dict.fromkeys(named)), Path(__file__).resolve().parent]


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Absolute names of all that a source may import: `from a import b` may mean the module `a.b`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # it cannot be loaded either
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*(part for part in above if part), *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
