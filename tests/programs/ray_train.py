"""An ordinary train function for Ray Train: nothing in it knows of Rubato."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model


def train_func(config: dict[str, Any]) -> None:
    """A line fitted to random points, for `epochs` epochs, and slowly on while the file `hold` exists."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 1)
    epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        epoch = state["epoch"]
    trained = prepare_model(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    print(f"rank {rank} of {context.get_world_size()} goes on behind epoch {epoch}", flush=True)
    while _goes_on(epoch, config):
        inputs = torch.randn(32, 4)
        loss = torch.nn.functional.mse_loss(trained(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch += 1
        if epoch == config.get("raise_at"):
            raise ValueError(f"epoch {epoch} cannot be trained")
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if epoch % config.get("save_every", 1) == 0 and rank == 0:
                torch.save({"model": model.state_dict(), "epoch": epoch}, Path(folder) / "state.pt")
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item(), "epoch": epoch, "note": "not a number"}, checkpoint=saved)


def _goes_on(epoch: int, config: dict[str, Any]) -> bool:
    """As rank 0 sees it."""
    is_held = Path(config["hold"]).exists()
    if is_held and epoch:
        time.sleep(0.1)
    goes_on = torch.tensor([epoch < config["epochs"] or is_held])
    torch.distributed.broadcast(goes_on, 0)
    return bool(goes_on)
