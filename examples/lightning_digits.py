"""Handwritten digits as one writes it with Lightning: the counterpart of `examples/digits.py`.

pip install -e ".[examples,recipes]"
python examples/lightning_digits.py --epochs 3
"""

import argparse

import lightning
import torch
from digits import build_model, load
from torch import nn
from torch.utils.data import DataLoader


class Digits(lightning.LightningModule):
    """Model, losses and optimizer."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.model = build_model()
        self.lr = lr

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """The accuracy over a batch."""
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW, whose learning rate falls by epochs."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def main() -> None:
    """Lightning starts its other processes by itself."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    lightning.seed_everything(0)
    train_set, test_set = load()
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Digits(args.lr), DataLoader(train_set, 256, shuffle=True), DataLoader(test_set, 256))
    print(f"epoch {args.epochs}  accuracy {trainer.callback_metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
