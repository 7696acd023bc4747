"""The program in the README runs as it stands there, alone and on two workers, to the same bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def digest_of(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUBATO_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = re.search(r"digest ([0-9a-f]{64})", done.stdout + done.stderr)
    assert found, done.stdout + done.stderr
    return found.group(1)


def test_the_program_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "train.py").write_text(blocks[0])
    alone = digest_of([sys.executable, "train.py"], tmp_path)
    shared = digest_of([sys.executable, "-m", "rubato.cli", "run", "train.py", "--workers", "2"], tmp_path)
    assert alone == shared
