"""Whether a program has the function that a spec names, told by reading its source. Runs none of it; pure."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Collection, Iterator

from rubato.errors import EntrypointError, meant

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def places(target: str) -> tuple[str, ...]:
    """Where a target, a file or a module, may lie in a working folder."""
    if target.endswith(".py"):
        return (posixpath.normpath(target),)
    base = target.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def find_source(target: str, names: Collection[str]) -> str | None:
    """Where a target lies among the files of a working folder.

    Args:
        target: a file (`train.py`), or a module (`package.module`).
        names: relative to that folder.

    Returns:
        None: it is a module that is not there; it may be installed where the workers run.

    Raises:
        EntrypointError: the file is not there; names one that may be meant.
    """
    found = next((path for path in places(target) if path in names), None)
    if found is not None or not target.endswith(".py"):
        return found
    there = ", ".join(sorted(name for name in names if name.endswith(".py") and "/" not in name)[:8])
    advice = meant(target, names) or f" ({there or 'no Python file'} there); see entrypoint in the spec"
    raise EntrypointError(f"there is no file {target} in the working folder{advice}")


def check_source(target: str, name: str, source: bytes) -> str:
    """Look for a function in the source of a file.

    Args:
        target: what the file is called in the spec.
        name: of the function; empty: `train`.

    Returns:
        A remark: it cannot be read by the Python here. Empty where there is nothing to say.

    Raises:
        EntrypointError: there is no such function; names the one that may be meant, or those there are.
    """
    name = name or "train"
    try:
        found = dict(_bound(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{target} cannot be read by the Python here: {error}"
    if name in found or "*" in found or "__getattr__" in found:
        return ""
    functions = [one for one, is_function in found.items() if is_function and not one.startswith("_")]
    there = f"its functions are {', '.join(functions[:8])}" if functions else "it defines none"
    advice = meant(name, functions) or f"; {there}; the entrypoint is FILE:FUNCTION"
    raise EntrypointError(f"{target} has no function {name!r}{advice}")


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
