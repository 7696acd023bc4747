"""The workload under Ray Train: the driver, and the loop of its workers.

python ray_mlp.py WORKLOAD ADDRESS MIN MAX RESIZE_EVERY_S
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs.ddp_mlp import train
from benchmarks.programs.workload import Workload

ray: Any = importlib.import_module("ray")
ray_train: Any = importlib.import_module("ray.train")


class Reported:
    """Checkpoints that Ray Train keeps; every worker must report, the lowest rank has something to."""

    def load(self) -> dict[str, Any] | None:
        checkpoint = ray_train.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            loaded: dict[str, Any] = torch.load(Path(folder) / "state.pt", weights_only=True)
            return loaded

    def save(self, state: dict[str, Any], rank: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                torch.save(state, Path(folder) / "state.pt")
            mine = ray_train.Checkpoint.from_directory(folder) if rank == 0 else None
            ray_train.report({"step": state["step"]}, checkpoint=mine)


def loop(config: dict[str, str]) -> None:
    train(Workload.from_json(config["workload"]), Reported())


def main(workload: str, address: str, low: str, high: str, resize_every_s: str) -> None:
    ray.init(address=address, log_to_driver=False)
    torch_trainer = importlib.import_module("ray.train.torch")
    trainer = torch_trainer.TorchTrainer(
        loop,
        train_loop_config={"workload": workload},
        scaling_config=ray_train.ScalingConfig(
            num_workers=(int(low), int(high)),
            resources_per_worker={"CPU": 1},
            elastic_resize_monitor_interval_s=float(resize_every_s),
        ),
        run_config=ray_train.RunConfig(
            storage_path=str(Path(Workload.from_json(workload).folder) / "ray"),
            failure_config=ray_train.FailureConfig(max_failures=-1),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
        ),
        torch_config=torch_trainer.TorchConfig(backend="gloo"),
    )
    trainer.fit()


if __name__ == "__main__":
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    main(*sys.argv[1:])
