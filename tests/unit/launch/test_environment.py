from __future__ import annotations

from pathlib import Path

from rubato.launch.environment import child_environment

WORKING_DIR = Path("/code")


def test_credentials_do_not_reach_the_users_code() -> None:
    base = {"RAY_AUTH_TOKEN": "s", "RAY_AUTH_TOKEN_PATH": "/s", "RUBATO_TOKEN": "s", "RUBATO_CLUSTER_TOKEN_FILE": "/s"}
    environment = child_environment({**base, "HOME": "/somewhere"}, working_dir=WORKING_DIR)
    assert not base.keys() & environment.keys()
    assert environment["HOME"] == "/somewhere"


def test_the_working_folder_is_looked_at_first() -> None:
    base = {"PYTHONPATH": "/theirs"}
    given = {"PYTHONPATH": "/jobs/own"}
    assert child_environment(base, working_dir=WORKING_DIR)["PYTHONPATH"] == "/code:/theirs"
    assert child_environment(base, working_dir=WORKING_DIR, job_env=given)["PYTHONPATH"] == "/code:/jobs/own:/theirs"
    assert child_environment(base, working_dir=WORKING_DIR, keep_pythonpath=False)["PYTHONPATH"] == "/code"


def test_what_the_bits_depend_on_is_fixed_unless_the_job_says_otherwise() -> None:
    base = {"OMP_NUM_THREADS": "8", "PYTHONHASHSEED": "random"}
    environment = child_environment(base, working_dir=WORKING_DIR)
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONHASHSEED"]) == ("1", "0")
    given = {"OMP_NUM_THREADS": "2", "UNSET": None}
    environment = child_environment(base, working_dir=WORKING_DIR, job_env=given)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "UNSET" not in environment
