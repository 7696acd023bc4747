"""The driver: one `fit()` of Ray Train, as a child of the job's controller. `python -m jobs.ray_train.driver PLAN END`.

It loads none of the user's code. SIGINT ends the run as Ray Train does it; with the process, however it ends, Ray ends
all actors that it made.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import ray

from jobs.fleet import NODE_ID_LABEL
from jobs.ray_train.messages import DriverEnd, DriverPlan
from jobs.ray_train.program import train_function
from rubato.checkpoint.storage import ObjectFolder
from rubato.errors import RubatoError
from rubato.launch.tether import tether_to_supervisor
from rubato.wire.codec import from_json, to_json
from rubato.wire.spec import JobSpec, parse_spec
from rubato.wire.storage import StorageUri, parse_storage


def main(arguments: list[str]) -> int:
    """Train, and leave the last word in a file."""
    tether_to_supervisor()
    # Ray's workers block it, also for their children; it is how the leader asks for the end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    plan_file, end_file = map(Path, arguments)
    plan = from_json(DriverPlan, json.loads(plan_file.read_text()))
    try:
        fit(plan, parse_spec(plan.spec, strict=False))
        end = DriverEnd("finished")
    except Exception as error:
        traceback.print_exc()
        end = describe(error)
    part = end_file.with_suffix(".part")
    part.write_text(json.dumps(to_json(end)))
    part.replace(end_file)
    return 0 if end.kind == "finished" else 1


def fit(plan: DriverPlan, spec: JobSpec) -> None:
    """Connect, and train until the function returns on all workers."""
    env = {name: value for name, value in spec.env.items() if value is not None}
    ray.init(
        address=plan.address,
        namespace=f"ray-train-{plan.job_id}",
        log_to_driver=False,  # the workers themselves pass their output on
        logging_level=logging.WARNING,
        runtime_env={"working_dir": plan.code, "env_vars": env},
    )
    from ray.train.v2.api.config import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig

    from jobs.ray_train.callback import Watch
    from jobs.ray_train.files import RunFiles
    from jobs.ray_train.trainer import Trainer

    callbacks: list[Any] = [Watch(plan.job_id, plan.attempt, plan.run)]
    # Any: to mypy TorchTrainer is that of Ray Train's first version.
    run_config: Any = RunConfig(
        name=plan.job_id,
        failure_config=FailureConfig(max_failures=plan.max_failures),
        checkpoint_config=CheckpointConfig(**retention(spec)),
        callbacks=callbacks,
        logging_config=LoggingConfig(log_level="WARNING"),  # else a line a report, of each worker
        **storage(parse_storage(plan.storage)),
    )
    if RunFiles(run_config.storage_context).mend():
        print("Ray Train's snapshot of its checkpoints was cut short; its copy was put in its place", file=sys.stderr)
    trainer = Trainer(
        train_function(plan.job_id, plan.attempt, plan.run, spec.entrypoint or ""),
        train_loop_config=spec.config,
        scaling_config=ScalingConfig(**scaling(plan, spec)),
        run_config=run_config,
    )
    trainer.fit()


def scaling(plan: DriverPlan, spec: JobSpec) -> dict[str, Any]:
    """Arguments of `ScalingConfig`: a fixed number of workers, for Rubato's scheduler shares the cluster out."""
    wanted = spec.resources_per_worker
    resources: dict[str, float] = {"CPU": wanted.cpu}
    if wanted.gpu:
        resources["GPU"] = wanted.gpu
    if wanted.memory is not None:
        resources["memory"] = wanted.memory
    chosen: dict[str, Any] = {"num_workers": plan.workers, "use_gpu": wanted.gpu > 0, "resources_per_worker": resources}
    if wanted.accelerator_type is not None:
        chosen["accelerator_type"] = wanted.accelerator_type
    if plan.avoid_nodes:
        chosen["label_selector"] = {NODE_ID_LABEL: f"!in({','.join(plan.avoid_nodes)})"}
    return chosen


def retention(spec: JobSpec) -> dict[str, Any]:
    """Arguments of `CheckpointConfig`. The newest is kept in any case."""
    best = spec.checkpoint.keep_best
    if best is None:
        return {"num_to_keep": spec.checkpoint.keep_last}
    return {
        "num_to_keep": best.keep,
        "checkpoint_score_attribute": best.metric,
        "checkpoint_score_order": best.mode,
    }


def storage(uri: StorageUri) -> dict[str, Any]:
    """Where `RunConfig` is to keep its files: a folder, or what fsspec speaks to, as for Rubato's own checkpoints."""
    if uri.is_local:
        return {"storage_path": uri.path}
    from pyarrow.fs import FSSpecHandler, PyFileSystem  # type: ignore[import-untyped]

    store, path = ObjectFolder.open(uri).place
    return {"storage_path": path, "storage_filesystem": PyFileSystem(FSSpecHandler(store))}


def describe(error: Exception) -> DriverEnd:
    """The last word after an exception."""
    from ray.train import WorkerGroupError

    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"[:2000]
    if isinstance(error, WorkerGroupError):
        return DriverEnd("workers_failed", text)
    if isinstance(error, RubatoError):
        text = str(error)
    return DriverEnd("failed", text, "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
