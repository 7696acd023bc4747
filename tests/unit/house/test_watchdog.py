"""A test that its timeout cannot end does not keep the whole run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from tests import watchdog
watchdog.GRACE = 1.0

def pytest_configure(config):
    config.pluginmanager.register(watchdog)
"""
TESTS = """
import signal
import time

import pytest

@pytest.fixture
def held():
    yield
    time.sleep(600)

@pytest.mark.timeout(1)
def test_hears_no_alarm():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)

@pytest.mark.timeout(1)
def test_fails_and_cannot_clean_up(held):
    assert False

def test_passes():
    pass
"""


def test_a_process_that_hangs_is_ended_with_its_stacks_and_another_runs_the_rest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(TESTS)
    # Among the paths of the child: the plugins, as in `make test`, and this project's watchdog.
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-v", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "3 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr  # of the second: its own failure, and its end
    for test in ("test_hears_no_alarm", "test_fails_and_cannot_clean_up"):
        assert f"crashed while running 'test_hanging.py::{test}'" in ran.stdout
    assert "in test_hears_no_alarm" in ran.stderr
    assert "in held" in ran.stderr
