"""A job's metrics in the forms of other tools: TensorBoard, MLflow, Weights & Biases.

Each is an optional extra. A job has one place there, named by its id, so that a second export replaces the first.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rubato.errors import UserError

if TYPE_CHECKING:
    from rubato.cli.local_runs import Source
    from rubato.client import Job, MetricPoint

SUFFIX = ".rubato"
"""Behind the names of event files, so that a second export knows those of the first."""
MLFLOW_BATCH = 1000
"""MLflow takes no more metrics in one request."""
MLFLOW_VALUE = 6000
"""And no longer values of a parameter."""
PROBE_S = 5.0


def read_rows(client: Source, job: Job) -> list[MetricPoint]:
    """The committed steps in order; of one that was trained again after a loss the later row.

    Raises:
        UserError: there is none yet.
    """
    rows = {row.step: row for row in client.metrics(job.id)}
    if not rows:
        raise UserError(f"{job.name} has committed no step yet, or its metrics are not kept any more")
    return [rows[step] for step in sorted(rows)]


def values_of(row: MetricPoint) -> dict[str, float]:
    """The numbers of a row, and how many workers made it; what was not finite is NaN."""
    values = {name: math.nan if value is None else float(value) for name, value in row.values.items()}
    return values if row.workers is None else {**values, "workers": float(row.workers)}


def to_tensorboard(job: Job, rows: list[MetricPoint], folder: Path) -> Path:
    """Event files in a folder of the job, beside those of other jobs; returns that folder."""
    tensorboard = _load("tensorboardX", "tensorboard")
    target = folder / f"{job.name}-{job.id}"
    for file in target.glob(f"events.out.tfevents.*{SUFFIX}"):
        file.unlink()
    with tensorboard.SummaryWriter(str(target), filename_suffix=SUFFIX) as writer:
        for row in rows:
            for name, value in values_of(row).items():
                writer.add_scalar(name, value, row.step, walltime=_seconds(row.time))
        for name, text in _settings(job).items():
            writer.add_text(name, text)
    return target


def to_mlflow(job: Job, rows: list[MetricPoint], uri: str) -> str:
    """A run in the experiment that is called as the job's project; returns the run's id.

    Raises:
        UserError: MLflow does not answer, or refuses.
    """
    mlflow, entities = _load("mlflow", "mlflow"), _load("mlflow.entities", "mlflow")
    _look_for_mlflow(uri)
    try:
        return _write_to_mlflow(mlflow.MlflowClient(tracking_uri=uri), entities, job, rows)
    except mlflow.exceptions.MlflowException as error:
        raise UserError(f"MLflow at {uri} refused: {error}") from error


def _look_for_mlflow(uri: str) -> None:
    """MLflow itself tries for minutes.

    Raises:
        UserError: nothing answers there.
    """
    if not uri.startswith(("http://", "https://")):
        return
    import httpx

    try:
        httpx.get(uri, timeout=PROBE_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UserError(f"MLflow does not answer at {uri} ({error}); check the address") from error


def _write_to_mlflow(client: Any, entities: Any, job: Job, rows: list[MetricPoint]) -> str:
    known = client.get_experiment_by_name(job.project)
    experiment = known.experiment_id if known else client.create_experiment(job.project)
    for older in client.search_runs([experiment], filter_string=f"tags.`rubato.job` = '{job.id}'"):
        client.delete_run(older.info.run_id)
    began = int(_seconds(rows[0].time) * 1000)
    tags = {"rubato.job": job.id, **job.labels}
    run_id: str = client.create_run(experiment, start_time=began, tags=tags, run_name=job.name).info.run_id
    metrics = (
        entities.Metric(name, value, int(_seconds(row.time) * 1000), row.step)
        for row in rows
        for name, value in values_of(row).items()
    )
    for batch in _batches(metrics, MLFLOW_BATCH):
        client.log_batch(run_id, metrics=batch)
    params = (entities.Param(name, value[:MLFLOW_VALUE]) for name, value in _settings(job).items())
    for batch in _batches(params, 100):
        client.log_batch(run_id, params=batch)
    ended = int(_seconds(rows[-1].time) * 1000)
    # A job that goes on may be exported, too.
    status = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}.get(job.status, "RUNNING")
    client.set_terminated(run_id, status=status, end_time=ended)
    return run_id


def to_wandb(job: Job, rows: list[MetricPoint], project: str) -> str:
    """A run of the project that is called as the job; returns its address, or its folder where it is offline.

    Raises:
        UserError: W&B does not answer, or refuses.
    """
    wandb = _load("wandb", "wandb")
    settings = wandb.Settings(console="off", x_disable_stats=True)
    try:
        run = wandb.init(
            project=project,
            id=job.id,
            name=job.name,
            config=dict((job.spec or {}).get("config") or {}),
            tags=[f"{name}={value}" for name, value in job.labels.items()],
            settings=settings,
        )
    except wandb.Error as error:
        raise UserError(f"W&B takes no run: {error}; see `wandb login`, or set WANDB_MODE=offline") from error
    for row in rows:
        run.log({**values_of(row), "time": _seconds(row.time)}, step=row.step)
    where = str(run.url or run.dir)
    run.finish(exit_code=int(job.status == "failed"))
    return where


def _load(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"this needs {module} ({error}): pip install '.[{extra}]' in the checkout of Rubato") from error


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _settings(job: Job) -> dict[str, str]:
    """What made the job what it is, as words."""
    spec = job.spec or {}
    chosen = {f"config.{name}": value for name, value in (spec.get("config") or {}).items()}
    chosen |= {name: spec[name] for name in ("entrypoint", "recipe", "seed", "batch") if spec.get(name) is not None}
    return {name: str(value) for name, value in chosen.items()}


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch
