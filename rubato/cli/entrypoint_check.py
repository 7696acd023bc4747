"""Whether a working folder has the function that a spec names, told before anything is packed. Runs none of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rubato.cli.near import meant
from rubato.errors import EntrypointError

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def check_entrypoint(entrypoint: str, folder: Path) -> str:
    """Look for the function by reading its file.

    Args:
        entrypoint: `train.py:train`, or `package.module:train`; without a function it is `train`.
        folder: the working folder.

    Returns:
        A remark: the file cannot be read by the Python here. Empty where there is nothing to say, also of a module
        that is not in the folder: it may be installed where the workers run.

    Raises:
        EntrypointError: the file is not there, or has no such function; names the one that was meant, or those it has.
    """
    target, _, name = entrypoint.partition(":")
    name = name or "train"
    path = _file_of(target, folder)
    if path is None:
        return ""
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError, OSError) as error:
        return f"{target} cannot be read by the Python here: {error}"
    found = dict(_bound(tree))
    if name in found or "*" in found or "__getattr__" in found:
        return ""
    functions = [one for one, is_function in found.items() if is_function and not one.startswith("_")]
    there = f"its functions are {', '.join(functions[:8])}" if functions else "it defines none"
    advice = meant(name, functions) or f"; {there}; the entrypoint is FILE:FUNCTION"
    raise EntrypointError(f"{target} has no function {name!r}{advice}")


def _file_of(target: str, folder: Path) -> Path | None:
    if target.endswith(".py"):
        path = folder / target
        if not path.is_file():
            near = ", ".join(sorted(one.name for one in folder.glob("*.py"))[:8]) or "no Python file"
            raise EntrypointError(f"there is no file {target} in {folder} ({near} there); see entrypoint in the spec")
        return path
    module = folder.joinpath(*target.split("."))
    return next((path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file()), None)


def _bound(scope: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names that running the module may bind, also within `if` and `try`; whether it is a function that is bound."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _SCOPES):
            if not isinstance(node, ast.Lambda):
                yield node.name, not isinstance(node, ast.ClassDef)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, False
        elif isinstance(node, ast.Name) and node.id in ("globals", "exec"):  # who uses these may bind anything
            yield "*", False
        yield from _bound(node)
