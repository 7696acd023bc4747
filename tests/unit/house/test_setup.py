"""Set-up: which Python is taken, what is skipped the second time, when the page is built again."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py as a module that works in a folder of its own."""
    spec = importlib.util.spec_from_file_location("rubato_setup", ROOT / "scripts" / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rubato_setup", module)
    spec.loader.exec_module(module)
    venv, web = tmp_path / ".venv", tmp_path / "web"
    venv.mkdir()
    web.mkdir()
    for name, value in {"ROOT": tmp_path, "VENV": venv, "WEB": web, "STAMPS": venv / "stamps.json"}.items():
        monkeypatch.setattr(module, name, value)
    return module


def make_step(setup: ModuleType, made: list[str], fingerprint: list[str], product: Path):
    def copy_a_file():
        def make() -> None:
            made.append(fingerprint[0])
            product.write_text("made")

        return setup.Step("a file", fingerprint[0], product, make)

    return copy_a_file


def run_one(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, step) -> None:
    for name in ("environment", "torch", "packages", "node_tools", "page_packages", "page"):
        monkeypatch.setattr(setup, name, step)
    setup.run_steps()


def test_a_step_is_made_once_and_again_when_its_sources_or_its_product_change(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    fingerprint = ["one"]
    product = tmp_path / "product"
    step = make_step(setup, made, fingerprint, product)
    run_one(setup, monkeypatch, step)
    run_one(setup, monkeypatch, step)
    assert made == ["one"]
    fingerprint[0] = "two"
    run_one(setup, monkeypatch, step)
    assert made == ["one", "two"]
    product.unlink()
    run_one(setup, monkeypatch, step)
    assert made == ["one", "two", "two"]


def test_a_failed_step_says_what_to_do_and_is_tried_again(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing():
        return setup.Step("doomed", "x", tmp_path / "never", lambda: setup.run(["false"], "do this instead"))

    for name in ("environment", "torch", "packages", "node_tools", "page_packages", "page"):
        monkeypatch.setattr(setup, name, failing)
    assert setup.main() == 1
    assert "do this instead" in capsys.readouterr().err
    assert setup.read_stamps() == {}


def test_stamps_that_were_cut_off_count_as_none(setup: ModuleType) -> None:
    setup.STAMPS.write_text('{"torch": "1')
    assert setup.read_stamps() == {}


def test_the_page_is_built_again_when_a_source_changes_but_not_for_what_is_made(setup: ModuleType) -> None:
    source = setup.WEB / "src" / "app.tsx"
    source.parent.mkdir()
    source.write_text("one")
    before = setup.page().fingerprint
    (setup.WEB / "dist").mkdir()
    (setup.WEB / "dist" / "index.html").write_text("built")
    (setup.WEB / "node_modules" / "preact").mkdir(parents=True)
    (setup.WEB / "node_modules" / "preact" / "index.js").write_text("installed")
    assert setup.page().fingerprint == before
    source.write_text("two")
    assert setup.page().fingerprint != before


@pytest.mark.parametrize(
    ("text", "version"), [("v20.19.4\n", (20, 19)), (">=22", (22, 0)), ("^24.1.0", (24, 1)), ("", (0, 0))]
)
def test_versions_of_node_are_read(setup: ModuleType, text: str, version: tuple[int, int]) -> None:
    assert setup.major_minor(text) == version


def test_node_must_be_as_new_as_the_page_asks(setup: ModuleType) -> None:
    assert setup.wanted_node() == setup.MIN_NODE
    (setup.WEB / "package.json").write_text('{"engines": {"node": ">=20.19"}}')
    assert setup.wanted_node() == (20, 19)


def run_setup_sh(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """setup.sh in a copy whose setup.py only tells which Python runs it, seeing only the commands in `folder`/bin."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / "setup.sh").write_text((ROOT / "scripts" / "setup.sh").read_text())
    (folder / "scripts" / "setup.py").write_text("import sys; print(sys.executable)")
    for name in ("bash", "dirname"):
        (folder / "bin" / name).symlink_to(
            next(Path(p) / name for p in os.get_exec_path() if (Path(p) / name).exists())
        )
    return subprocess.run(
        [folder / "bin" / "bash", folder / "scripts" / "setup.sh"],
        env={"PATH": str(folder / "bin"), **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path


def write_command(folder: Path, name: str, line: str) -> None:
    script = folder / "bin" / name
    script.write_text(f"#!{folder}/bin/bash\n{line}\n")
    script.chmod(0o755)


def test_a_python_that_does_not_run_or_is_too_old_is_passed_over(commands: Path) -> None:
    write_command(commands, "python3.11", "exit 127")
    write_command(commands, "python3.12", f'exec "{sys.executable}" "$@"')
    done = run_setup_sh(commands)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_without_a_python_the_message_says_what_is_there_and_what_to_do(commands: Path) -> None:
    write_command(commands, "python3", '[[ "$1" == --version ]] && echo "Python 3.9.2" || exit 1')
    done = run_setup_sh(commands)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "python3 is Python 3.9.2" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_a_named_python_is_the_only_candidate(commands: Path) -> None:
    write_command(commands, "python3.11", f'exec "{sys.executable}" "$@"')
    done = run_setup_sh(commands, PYTHON="/nowhere/python3")
    assert done.returncode == 1
    assert "/nowhere/python3" in done.stderr
