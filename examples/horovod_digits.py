"""An ordinary Horovod script, but for its import: handwritten digits.

    rubato run examples/horovod_digits.py:main --workers 4 --batch 128 --config epochs=3

It reads `--config epochs=3` as `--epochs 3`. What differs from Horovod is in docs/how-to/horovod.md.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import rubato.hvd as hvd  # instead of: import horovod.torch as hvd

TEST_SAMPLES = 297


def load() -> tuple[TensorDataset, TensorDataset]:
    """Train and test: 64 pixels from 0 to 1, and labels."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, test = slice(TEST_SAMPLES, None), slice(TEST_SAMPLES)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """Accuracy over the test set, averaged over the ranks."""
    model.eval()
    correct = 0.0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(1) == labels).sum().item()
    accuracy = torch.tensor(correct / len(loader.sampler))
    return hvd.allreduce(accuracy, name="accuracy").item()


def main() -> None:
    """What `horovodrun` would start on every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    train_set, test_set = load()
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_loader = DataLoader(test_set, batch_size=256, sampler=test_sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        scheduler.step()
        accuracy = evaluate(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: {accuracy:.1%} of the test images recognised")


if __name__ == "__main__":
    main()
