"""The environment a training process is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SECRET_PREFIXES = ("RAY_AUTH_TOKEN", "RUBATO_TOKEN", "RUBATO_CLUSTER_TOKEN", "RUBATO_DATABASE_URL")
"""Credentials of ours: the user's code has no business with them."""

_DEFAULTS = {
    # A fixed count: the bits of a sum depend on how many threads share it out. One is right where workers share a host.
    "OMP_NUM_THREADS": "1",
    # The order of a set of strings must be the same in all workers.
    "PYTHONHASHSEED": "0",
    # Output is wanted as it is written, and the stacks of all threads when a native crash or a hang ends the process.
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    # A peer that dies breaks what was under way with it: the engine sees that and goes on with the others. By default
    # (3) a thread of torch ends the whole process where it sees it first.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


def child_environment(
    base: Mapping[str, str],
    *,
    working_dir: Path,
    job_env: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str] | None = None,
    keep_pythonpath: bool = True,
) -> dict[str, str]:
    """The environment of a training process.

    Args:
        base: that of the supervisor; credentials of Rubato and Ray are left out.
        working_dir: comes first on PYTHONPATH, so that the user's own modules win.
        job_env: the job's `env`; it overrides everything but where modules are looked for first.
        secrets: the job's secrets by name, likewise.
        keep_pythonpath: whether the PYTHONPATH of `base` counts; false where it is the cluster's own.
    """
    environment = {name: value for name, value in base.items() if not name.startswith(_SECRET_PREFIXES)}
    for name in _DEFAULTS:
        environment.pop(name, None)
    inherited = environment.pop("PYTHONPATH", "")
    environment |= _DEFAULTS
    given = {name: value for name, value in (job_env or {}).items() if value is not None}
    given |= secrets or {}
    environment |= given
    paths = [str(working_dir), given.get("PYTHONPATH", ""), inherited if keep_pythonpath else ""]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment
