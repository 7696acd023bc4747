"""Handwritten digits as one writes it with Hugging Face Accelerate: the counterpart of `examples/digits.py`.

pip install -e ".[examples,recipes]"
python examples/accelerate_digits.py --epochs 3
"""

import argparse

import torch
from accelerate import Accelerator
from digits import build_model, load
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    """What `accelerate launch` would start on every process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    train_set, test_set = load()
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = DataLoader(train_set, batch_size=256 // accelerator.num_processes, shuffle=True)
    model, optimizer, batches, test_batches = accelerator.prepare(
        model, optimizer, batches, DataLoader(test_set, batch_size=256)
    )

    for epoch in range(args.epochs):
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
        schedule.step()
        model.eval()
        correct = []
        with torch.no_grad():
            for images, labels in test_batches:
                correct.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
        accelerator.print(f"epoch {epoch + 1}  accuracy {torch.cat(correct).float().mean():.4f}")


if __name__ == "__main__":
    main()
