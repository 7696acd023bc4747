"""Programs in the documents run as they stand there, alone and on two workers, to the same bits."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUBATO_HOME": str(folder / "home"), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


def digest_of(command: list[str], folder: Path) -> str:
    done = run(command, folder)
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


def test_a_script_for_ddp_before_and_after(tmp_path: Path) -> None:
    """It learns the same; the bits are those of one worker."""
    page = (ROOT / "docs" / "how-to" / "from-ddp.md").read_text()
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    before = run([sys.executable, "ddp.py", "--epochs", "3"], tmp_path, **alone).stdout
    errors = [float(text) for text in re.findall(r"error ([\d.]+)", before)]
    assert len(errors) == 3

    told = ("--batch", "128", "--config", "epochs=3")
    command = [sys.executable, "-m", "rubato.cli", "run", "train.py", "--workers", "2", *told, "--json"]
    after = json.loads(run(command, tmp_path).stdout)
    assert after["step"] == 3 * 32
    assert after["result"]["digest"] == digest_of([sys.executable, "train.py", *told], tmp_path)
    for error in (errors[-1], after["metrics"]["error"]):
        assert error < 0.1 < errors[0] < 20.0, "of a sum whose variance is 20"
