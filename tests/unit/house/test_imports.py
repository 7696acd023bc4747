"""Allow-lists that import-linter cannot express: which parts of `rubato` the others may name."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIRE = ("rubato.wire", "rubato.errors")
UNPICKLERS = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
OWN_PIPES = "rubato/data/segment.py"
"""Batches from processes that the training process has started itself, over a socket pair."""
PUBLIC = ("rubato.recipes", "rubato.errors")
PLANNER = tuple(f"rubato.planner.{name}" for name in ("batches", "choose", "links", "measured", "profile"))
BESIDES = {
    "api": ("rubato.recipes", "rubato.recipes.keys", "rubato.spec_yaml", *PLANNER),
    "service": ("rubato.entrypoint_source", "rubato.recipes.check"),
}
"""They tell of recipes and programs without importing one, and read specs as the CLI does; the planner is pure."""


def imported_modules(path: Path) -> set[str]:
    """Every absolute module that the file imports, also inside functions; `from rubato import wire` gives both."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module
            found |= {node.module}
            if node.module == "rubato":
                found |= {f"rubato.{alias.name}" for alias in node.names if alias.name.islower()}
    return found


def imports_of(part: str) -> list[tuple[str, str]]:
    folder = ROOT / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [(str(path.relative_to(ROOT)), module) for path in files for module in sorted(imported_modules(path))]


def is_within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("part", ["service", "api"])
def test_the_service_knows_only_the_wire(part: str) -> None:
    known = [(file, module) for file, module in imports_of(part) if is_within(module, ("rubato",))]
    exactly = ("rubato", *BESIDES.get(part, ()))
    assert [(file, module) for file, module in known if module not in exactly and not is_within(module, WIRE)] == []


def test_the_wire_needs_only_the_standard_library() -> None:
    modules = [*imports_of("rubato/wire"), *imports_of("rubato/errors")]
    assert modules
    foreign = [
        (file, module)
        for file, module in modules
        if module.partition(".")[0] not in sys.stdlib_module_names and not is_within(module, WIRE)
    ]
    assert foreign == []


def test_recipes_use_only_public_names() -> None:
    inner = [
        (file, module)
        for file, module in imports_of("rubato/recipes")
        if is_within(module, ("rubato",)) and module != "rubato" and not is_within(module, PUBLIC)
    ]
    assert inner == []


@pytest.mark.parametrize("part", ["service", "api", "jobs", "rubato"])
def test_nothing_that_comes_from_elsewhere_is_unpickled(part: str) -> None:
    known = [(file, module) for file, module in imports_of(part) if is_within(module, UNPICKLERS)]
    assert [one for one in known if one[0] != OWN_PIPES] == []
    loads = [
        (str(path.relative_to(ROOT)), node.lineno)
        for path in sorted((ROOT / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "numpy.load", "np.load")
    ]
    assert loads == []
