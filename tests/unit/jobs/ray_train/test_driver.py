"""What a driver hands to Ray Train, and what comes back from it: the parts that need no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs  # type: ignore[import-untyped]
import pytest
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError

from jobs.ray_train.callback import describe_error, numbers_of
from jobs.ray_train.driver import describe, retention, scaling, storage
from jobs.ray_train.files import COPY, SNAPSHOT, RunFiles, is_unfinished
from jobs.ray_train.messages import CheckpointSeen, DriverPlan, Reported
from jobs.ray_train.process import driver_environment
from jobs.ray_train.program import find_folder, takes_config
from jobs.ray_train.steps import Record, Snapshot
from rubato.entrypoint import load_function
from rubato.errors import EntrypointError
from rubato.wire.spec import JobSpec, parse_spec
from rubato.wire.storage import parse_storage

PLAN = DriverPlan("job_1", 1, 2, 3, 5, ("n1", "n2"), "/storage/job_1", "/code", "127.0.0.1:6379", {})


def spec(**given: Any) -> JobSpec:
    return parse_spec({"name": "a", "backend": "ray_train", "entrypoint": "train.py:train_func", **given})


def test_the_count_is_fixed_and_nodes_are_avoided() -> None:
    assert scaling(PLAN, spec(resources_per_worker={"cpu": 2, "memory": "1GiB"})) == {
        "num_workers": 3,
        "use_gpu": False,
        "resources_per_worker": {"CPU": 2, "memory": 2**30},
        "label_selector": {"ray.io/node-id": "!in(n1,n2)"},
    }
    gpu = scaling(PLAN, spec(resources_per_worker={"gpu": 0.5, "accelerator_type": "H100"}))
    assert (gpu["use_gpu"], gpu["resources_per_worker"]["GPU"], gpu["accelerator_type"]) == (True, 0.5, "H100")


def test_the_retention_is_ray_trains() -> None:
    assert retention(spec(checkpoint={"keep_last": 4})) == {"num_to_keep": 4}
    best = {"metric": "accuracy", "mode": "max", "keep": 2}
    assert retention(spec(checkpoint={"keep_best": best})) == {
        "num_to_keep": 2,
        "checkpoint_score_attribute": "accuracy",
        "checkpoint_score_order": "max",
    }


def test_the_storage_is_a_folder_or_what_fsspec_speaks_to() -> None:
    assert storage(parse_storage("/shared/job_1")) == {"storage_path": "/shared/job_1"}
    stored = storage(parse_storage("memory://bucket/job_1"))
    assert stored["storage_path"] == "/bucket/job_1"
    assert isinstance(stored["storage_filesystem"], pyarrow.fs.PyFileSystem)


def test_the_driver_gets_what_the_job_sets_of_ray_train_and_nothing_else_of_it() -> None:
    base = {"PATH": "/bin", "RAY_JOB_ID": "01", "RAY_AUTH_TOKEN_PATH": "/token"}
    made = driver_environment(base, {"RAY_TRAIN_X": "1", "PYTHONPATH": "/user", "RAY_CHDIR_TO_TRIAL_DIR": "0"})
    assert made["RAY_TRAIN_X"] == "1"
    assert made["RAY_CHDIR_TO_TRIAL_DIR"] == "0"
    assert made["RAY_AUTH_TOKEN_PATH"] == "/token"
    assert made.keys().isdisjoint({"PYTHONPATH", "RAY_JOB_ID"})


def test_only_finite_numbers_are_metrics() -> None:
    given = {"loss": 0.5, "epoch": 2, "name": "x", "bad": float("nan"), "is_last": True, "all": [1]}
    assert numbers_of(given) == {"loss": 0.5, "epoch": 2.0}


def test_an_exception_and_a_death_are_told_apart() -> None:
    raised = describe_error(1, UserExceptionWithTraceback(ValueError("no"), "Traceback ...\nValueError: no"))
    assert (raised.is_death, raised.error) == (False, "ValueError: no")
    assert raised.traceback == "Traceback ...\nValueError: no"
    died = describe_error(0, WorkerHealthCheckFailedError("A worker health check failed.", RuntimeError("killed")))
    assert (died.is_death, died.error) == (True, "its process ended (RuntimeError)")


def test_the_last_word_says_whether_the_workers_failed() -> None:
    assert describe(WorkerGroupError("rank 0", {0: ValueError("no")})).kind == "workers_failed"
    end = describe(RuntimeError("no storage\nmore"))
    assert (end.kind, end.error) == ("failed", "RuntimeError: no storage")
    assert "RuntimeError: no storage\nmore" in end.traceback


def test_the_config_is_given_to_a_function_that_needs_it() -> None:
    assert takes_config(lambda config: None)
    assert not takes_config(lambda: None)
    assert not takes_config(lambda config=None: None)


def test_the_working_folder_is_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own_train.py").write_text("def train_func(config): return config['x']\n")
    assert find_folder("sub/own_train.py", ["", "/nowhere", str(tmp_path)]) == tmp_path
    function, _ = load_function("sub/own_train.py", "train_func", tmp_path)
    assert function({"x": 3}) == 3
    with pytest.raises(EntrypointError, match=r"there is no file missing\.py"):
        load_function("missing.py", "train_func", tmp_path)


def run_files(folder: Path) -> RunFiles:
    store = pyarrow.fs.LocalFileSystem()
    place: Any = SimpleNamespace(storage_filesystem=store, experiment_fs_path=str(folder), experiment_dir_name="job_1")
    return RunFiles(place)


def snapshot_text(*folders: str) -> str:
    results = [{"checkpoint_dir_name": folder, "metrics": {}} for folder in folders]
    newest = results[-1] if results else None
    return json.dumps({"checkpoint_results": results, "latest_checkpoint_result": newest, "current_report_index": 3})


def test_a_snapshot_that_was_cut_short_is_replaced_by_its_copy(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    assert not files.mend()
    (tmp_path / SNAPSHOT).write_text(snapshot_text("checkpoint_a"))
    records = (Record("checkpoint_a", 3, 3, "1-3"),)
    reports = (Reported(3, 1.5, {"loss": 0.5}, 1, CheckpointSeen("1-3", "job_1/checkpoint_a", 10)),)
    files.keep(records, reports)
    assert not files.mend()
    (tmp_path / SNAPSHOT).write_text(snapshot_text("checkpoint_a", "checkpoint_b")[:20])
    assert files.mend()
    assert (files.snapshot(), files.records()) == (Snapshot("checkpoint_a", ("checkpoint_a",), 3), records)
    assert files.reports() == reports
    (tmp_path / SNAPSHOT).write_text("")
    (tmp_path / COPY).unlink()
    assert not files.mend()


def test_a_checkpoint_that_was_being_reported_is_taken_away(tmp_path: Path) -> None:
    for name in ("checkpoint_a", "checkpoint_b", "own"):
        (tmp_path / name).mkdir()
    snapshot = Snapshot("checkpoint_a", (), 1)
    run_files(tmp_path).remove_unfinished(snapshot)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint_a", "own"]
    assert not is_unfinished("checkpoint_a", snapshot)
