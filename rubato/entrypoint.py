"""The function that an entrypoint names. Loads nothing but the user's module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rubato.errors import EntrypointError


def load_function(target: str, name: str, folder: Path = Path()) -> tuple[Callable[..., Any], ModuleType]:
    """A function, and its module.

    Args:
        target: a file below the folder (`train.py`), or a module (`package.module`).
        folder: the working folder.

    Raises:
        EntrypointError: the file, module or function is not there.  Whatever the user's module raises on import.
    """
    module = _load_file(folder, target) if target.endswith(".py") else _load_module(folder, target)
    function = getattr(module, name, None)
    if not callable(function):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        there = f"it has {', '.join(public[:8])}" if public else "it defines none"
        raise EntrypointError(f"{target} has no function {name!r} ({there}); the entrypoint is FILE:FUNCTION")
    return function, module


def _load_file(working: Path, target: str) -> ModuleType:
    path = working / target
    if not path.is_file():
        near = ", ".join(sorted(one.name for one in working.glob("*.py"))[:8]) or "no Python file"
        raise EntrypointError(
            f"there is no file {target} in the working folder ({near} there); see entrypoint in the spec"
        )
    _look_first_in(path.resolve().parent)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import would: pickling and forked loaders look the module up
    spec.loader.exec_module(module)
    return module


def _look_first_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _load_module(working: Path, name: str) -> ModuleType:
    _look_first_in(working.absolute())  # PYTHONPATH cannot name a folder with a colon in its path
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise EntrypointError(f"there is no module {name!r} in the working folder or installed") from error
        raise
