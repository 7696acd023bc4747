"""A train function of Ray Train, whole and unmodified: nothing in it knows of Rubato.

rubato submit examples/ray_train_digits.yaml
"""

import tempfile
from pathlib import Path

import ray.train
import torch
from digits import build_model, load
from ray.train.torch import prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader


def train_func(config: dict) -> None:
    """Ray Train calls this on every worker; after a restart it goes on behind the newest checkpoint."""
    train_set, test_set = load()
    workers = ray.train.get_context().get_world_size()
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.003))
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epochs"]
        print(f"goes on behind epoch {first} with {workers} workers", flush=True)
    trained = prepare_model(model)
    batches = prepare_data_loader(DataLoader(train_set, config.get("batch", 128) // workers, shuffle=True))
    images, labels = test_set.tensors
    for epoch in range(first, config.get("epochs", 10)):
        if workers > 1:
            batches.sampler.set_epoch(epoch)
        trained.train()
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(trained(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
                torch.save(state, Path(folder) / "state.pt")
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item(), "accuracy": accuracy}, checkpoint=saved)


if __name__ == "__main__":
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="digits")).fit()
