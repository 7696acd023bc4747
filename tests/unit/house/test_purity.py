"""What importing a part may load, and how long `import rubato` may take: measured in fresh interpreters."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "ray", "numpy", "sqlalchemy", "fastapi", "safetensors")

MEASURE = """
import importlib, json, sys, time
began = time.perf_counter()
importlib.import_module(sys.argv[1])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def measure(module: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("rubato", HEAVY),
        ("rubato.errors", HEAVY),
        ("rubato.wire.spec", HEAVY),
        ("rubato.wire.cluster", HEAVY),
        ("rubato.client", ("torch", "ray", "numpy", "sqlalchemy", "fastapi")),
        ("rubato.cli", ("torch", "ray", "numpy", "sqlalchemy", "fastapi")),
        ("rubato.cli.keeper", ("torch", "ray", "numpy", "sqlalchemy", "fastapi")),
        ("rubato.cli.demo", ("torch", "ray", "numpy", "sqlalchemy", "fastapi")),
        ("service", ("torch", "ray", "numpy")),
        ("api", ("torch", "ray", "numpy")),
        ("api.app", ("torch", "ray", "numpy")),
    ],
)
def test_importing_a_part_does_not_load_what_it_must_not(module: str, forbidden: tuple[str, ...]) -> None:
    loaded = set(measure(module)["modules"])
    assert module in loaded
    assert not loaded & set(forbidden)


def test_every_public_name_is_there_after_import_rubato_alone() -> None:
    program = "import rubato; [getattr(rubato, name) for name in rubato.__all__]; rubato.data.CachedFiles"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_import_rubato_is_fast() -> None:
    # The best of five: the machine may be busy, the import itself is what is meant.
    best_s = min(measure("rubato")["seconds"] for _ in range(5))
    assert best_s < 0.1
