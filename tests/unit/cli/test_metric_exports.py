from __future__ import annotations

import math
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from rubato.cli import metric_exports
from rubato.client import Job, MetricPoint
from rubato.client.models import decode
from rubato.errors import UserError
from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, job


def row(position: int, step: int, **values: float | None) -> dict[str, Any]:
    time = f"2026-01-31T12:00:{step:02}Z"
    return {"position": position, "step": step, "time": time, "values": values, "workers": 2}


# Step 2 was trained again after a loss; the loss of step 3 was not finite.
ROWS = [row(1, 1, loss=2.0), row(2, 2, loss=9.0), row(3, 2, loss=1.0), row(4, 3, loss=None)]


@pytest.fixture
def trained(service: FakeService) -> FakeService:
    service.on("GET", "/jobs/digits", job(spec={"config": {"lr": 0.1}, "seed": 3}))

    def page(request: Request) -> Any:
        return Reply({"items": [one for one in ROWS if one["position"] > int(request.query.get("after", "0"))]})

    service.on("GET", "/jobs/job_1/metrics", page)
    return service


def read_events(folder: Path) -> list[tuple[str, int, float, float]]:
    """What TensorBoard would read: records of a length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    content, found = file.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        found += [(one.tag, event.step, one.simple_value, event.wall_time) for one in event.summary.value]
    return found


def test_tensorboard_reads_each_step_once_also_after_a_second_export(
    trained: FakeService, rubato: Rubato, tmp_path: Path
) -> None:
    for _ in range(2):
        done = rubato("export", "digits", "--tensorboard", str(tmp_path / "runs"), "--json")
        assert done.code == 0, done.err
    assert done.json == {"job": "job_1", "steps": 3, "tensorboard": str(tmp_path / "runs" / "digits-job_1")}
    events = read_events(tmp_path / "runs" / "digits-job_1")
    losses = [(step, value) for tag, step, value, _ in events if tag == "loss"]
    assert losses[:2] == [(1, 2.0), (2, 1.0)]
    assert math.isnan(losses[2][1])
    assert [value for tag, _, value, _ in events if tag == "workers"] == [2.0] * 3
    assert events[0][3] == 1769860801.0  # 12:00:01
    assert "config.lr/text_summary" in {tag for tag, *_ in events}


def rows() -> list[MetricPoint]:
    return [decode(MetricPoint, one) for one in ROWS[:1] + ROWS[2:]]


def found_job() -> Job:
    return decode(Job, job(status="succeeded", spec={"config": {"lr": 0.1}, "seed": 3}))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_one_run_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # tests ask nobody
    import mlflow

    uri = tmp_path.as_uri()
    metric_exports.to_mlflow(found_job(), rows(), uri)
    run_id = metric_exports.to_mlflow(found_job(), rows(), uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("default")
    assert [one.info.run_id for one in client.search_runs([experiment.experiment_id])] == [run_id]
    history = client.get_metric_history(run_id, "loss")
    assert [(one.step, one.value) for one in history][:2] == [(1, 2.0), (2, 1.0)]
    run = client.get_run(run_id)
    assert (run.data.params["config.lr"], run.info.status) == ("0.1", "FINISHED")


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_a_folder_where_it_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # nor does it report its own
    monkeypatch.chdir(tmp_path)
    folder = Path(metric_exports.to_wandb(found_job(), rows(), "vision"))
    assert folder.is_relative_to(tmp_path)
    assert list(folder.parent.glob("*.wandb"))


def test_what_is_not_installed_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"pip install '\.\[mlflow\]' in the checkout"):
        metric_exports.to_mlflow(found_job(), rows(), "http://mlflow.example")


def test_an_mlflow_that_does_not_answer_is_told_at_once() -> None:
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UserError, match=f"MLflow does not answer at {uri} .*; check the address"):
            metric_exports.to_mlflow(found_job(), rows(), uri)


def test_what_mlflow_refuses_is_told_in_a_line(service: FakeService) -> None:
    with pytest.raises(UserError, match=f"MLflow at {service.url} refused: "):  # it answers, and is no MLflow
        metric_exports.to_mlflow(found_job(), rows(), service.url)


def test_what_wandb_refuses_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def refuse(**_: Any) -> None:
        raise wandb.Error("no API key")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="W&B takes no run: no API key; see `wandb login`"):
        metric_exports.to_wandb(found_job(), rows(), "vision")


def test_a_job_without_a_step_has_nothing_to_export(service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    service.on("GET", "/jobs/digits", job())
    service.on("GET", "/jobs/job_1/metrics", {"items": []})
    done = rubato("export", "digits", "--tensorboard", str(tmp_path))
    assert done.code == 1
    assert "has committed no step yet" in done.err
