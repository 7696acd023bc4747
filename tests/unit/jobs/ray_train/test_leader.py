from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from jobs.ray_train.leader import RayTrainLeader
from rubato.errors import StorageUnreachable
from rubato.wire.cluster import Acquired, Desired
from rubato.wire.spec import JobSpec, spec_to_json

SPEC = JobSpec(name="digits", entrypoint="train.py:train", backend="ray_train", package="0" * 64)


class Link:
    """Of a service that has no such package."""

    def fetch_package(self, *_: Any) -> Any:
        raise LookupError("there is no package")


def begin(storage: Path, newest: str) -> None:
    acquired = Acquired(
        2, "token", "digits", spec_to_json(SPEC), str(storage), Desired(1, "run", 1), newest_checkpoint=newest
    )
    RayTrainLeader("job_1", acquired, cast(Any, Link()), cast(Any, Link()), lambda: None)


def test_an_attempt_does_not_begin_anew_on_a_storage_that_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match=r"checkpoint_000003 was saved there: is the storage mounted\?"):
        begin(tmp_path, "checkpoint_000003")
    assert list(tmp_path.iterdir()) == [], "nothing is put on the mount point"
    (tmp_path / "job_1" / "run").mkdir(parents=True)
    with pytest.raises(LookupError):  # it goes on to the next thing that it needs
        begin(tmp_path, "checkpoint_000003")


def test_a_job_that_has_saved_nothing_begins_on_an_empty_storage(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        begin(tmp_path, "")
    assert (tmp_path / "job_1").is_dir()
