from __future__ import annotations

import contextlib
import importlib
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato import program
from rubato.code_digest import ProgramCode
from rubato.wire.spec import JobSpec

FILES = {
    "train.py": """
        import json
        import torch
        import models
        from package import parts
        def train(run):
            from late import evaluate
            from . import never_mind
    """,
    "models.py": "import layers\n",
    "layers.py": "",
    "late.py": "import later.still\n",
    "later/still.py": "",
    "package/__init__.py": "from .parts import part\n",
    "package/parts.py": "from .inner import *\npart = 1\ndef never():\n    from ... import beyond\n",
    "package/inner/__init__.py": "from ..sibling import one\n",
    "package/sibling.py": "one = 1\n",
    "stranger.py": "",
    "package/stranger.py": "",
    "broken.py": "def (",
    "torch/stranger.py": "",
}
REACHED = {
    "train.py",
    "models.py",
    "layers.py",
    "late.py",
    "later/still.py",
    "package/__init__.py",
    "package/parts.py",
    "package/inner/__init__.py",
    "package/sibling.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "program"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    forget(tmp_path)


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(str(folder))]
    importlib.invalidate_caches()


def load(folder: Path) -> ProgramCode:
    """As a fresh process does that starts in this folder."""
    forget(folder.parent)
    sys.path.insert(0, str(folder))
    with contextlib.chdir(folder):
        return program.load_entrypoint(JobSpec(name="a", entrypoint="train.py"))[1]


def test_all_that_the_program_may_import_counts_and_nothing_else(folder: Path) -> None:
    assert set(load(folder).files()) == REACHED


@pytest.mark.parametrize("name", sorted(REACHED))
def test_a_change_of_any_of_them_is_another_program(folder: Path, name: str) -> None:
    before = load(folder).digest()
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    assert load(folder).digest() != before


def test_what_is_not_of_the_program_changes_nothing(folder: Path) -> None:
    before = load(folder).digest()
    for name in FILES.keys() - REACHED:
        (folder / name).write_text("changed = True\n")
    (folder / "data.csv").write_text("1,2\n")
    assert load(folder).digest() == before


def test_the_place_of_the_folder_changes_nothing(folder: Path, tmp_path: Path) -> None:
    before = load(folder).digest()
    assert load(folder.rename(tmp_path / "elsewhere")).digest() == before


def test_a_module_that_is_found_by_name_counts_once_it_is_loaded(folder: Path) -> None:
    code = load(folder)
    importlib.import_module("package.stranger")
    assert set(code.files()) == REACHED | {"package/stranger.py"}


def test_an_import_that_no_line_had_reached_changes_nothing_when_one_does(folder: Path) -> None:
    """So that workers agree wherever they stand."""
    code = load(folder)
    before = code.digest()
    assert "late" not in sys.modules
    importlib.import_module("late")
    assert code.digest() == before


def test_a_file_counts_as_it_was_when_it_was_loaded(folder: Path) -> None:
    code = load(folder)
    before = code.digest()
    (folder / "models.py").write_text("edited = True\n")
    assert code.digest() == before


def test_generated_code_of_a_compiler_does_not_count(folder: Path) -> None:
    """torch.compile registers what it writes below its own package, wherever the file lies."""
    code = load(folder)
    made = types.ModuleType("torch._made_up")
    made.__file__ = str(folder / "stranger.py")
    sys.modules[made.__name__] = made
    assert set(code.files()) == REACHED


def test_of_a_recipe_only_the_recipe_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = importlib.import_module("rubato.recipes.char_lm")
    assert [Path(name).name for name in ProgramCode(recipe).files()] == ["char_lm.py"]
