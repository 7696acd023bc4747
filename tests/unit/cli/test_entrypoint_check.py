"""A function that is not there is told before anything is packed; one that may be there is never refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubato.cli.entrypoint_check import check_entrypoint
from rubato.errors import EntrypointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("def begin(run): ...\n")
    (tmp_path / "package" / "module.py").write_text("from elsewhere import train as start\n")
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        "def train(run): ...",
        "async def train(run): ...",
        "class train: ...",
        "train = make()",
        "train: object = make()",
        "other, train = make()",
        "from model import train",
        "from model import fit as train",
        "import train",
        "from model import *",
        "try:\n    from fast import train\nexcept ImportError:\n    def train(run): ...",
        "if True:\n    train = lambda run: None",
        "for train in makers: pass",
        "def __getattr__(name): ...",
        "globals()['tr' + 'ain'] = print",
        "exec(text)",
    ],
)
def test_whatever_may_bind_the_name_is_accepted(folder: Path, source: str) -> None:
    (folder / "train.py").write_text(source)
    assert check_entrypoint("train.py:train", folder) == ""
    assert check_entrypoint("train.py", folder) == "", "without a name it is train"


def test_a_missing_function_is_told_with_those_that_are_there(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import os\nLR = 1\ndef fit(run):\n    train = 1\nclass Net:\n    def train(self): ...\ndef _own(): ...\n"
    )
    with pytest.raises(EntrypointError, match=r"train\.py has no function 'train'; its functions are fit; the entryp"):
        check_entrypoint("train.py:train", folder)
    with pytest.raises(EntrypointError, match=r"train\.py has no function 'fitt'; did you mean 'fit'\?$"):
        check_entrypoint("train.py:fitt", folder)
    with pytest.raises(EntrypointError, match="it defines none"):
        check_entrypoint("package.module:train", folder)
    with pytest.raises(EntrypointError, match="its functions are begin"):
        check_entrypoint("package:train", folder)


def test_modules_and_files_are_found_in_the_folder(folder: Path) -> None:
    assert check_entrypoint("package.module:start", folder) == ""
    assert check_entrypoint("package:begin", folder) == ""
    assert check_entrypoint("installed.elsewhere:begin", folder) == "", "the workers may have it"
    with pytest.raises(EntrypointError, match=r"there is no file trane\.py in .* \(no Python file there\)"):
        check_entrypoint("trane.py:train", folder)


def test_a_file_that_this_python_cannot_read_is_a_remark(folder: Path) -> None:
    (folder / "train.py").write_text("def train(run:\n")
    assert "train.py cannot be read by the Python here" in check_entrypoint("train.py:train", folder)
