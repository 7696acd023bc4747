"""Half precision: forward passes in float16, a GradScaler, gradients that are clipped at their true size.

    python examples/mixed_precision.py --config epochs=3
    rubato run examples/mixed_precision.py --workers 4

`bfloat16` needs no scaler: `torch.autocast(..., dtype=torch.bfloat16)` around the forward pass is all, or
`rubato.train(precision="bfloat16")`.
"""

import torch
from digits import build_model, load
from torch import nn

import rubato


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    model = build_model().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.config.get("lr", 0.003))
    scaler = torch.amp.GradScaler(run.device.type)
    run.prepare(model=model, optimizer=optimizer, scaler=scaler, dataset=load()[0])

    for step in run.steps():  # steps or epochs of the config
        for images, labels in step:
            with torch.autocast(run.device.type, dtype=torch.float16):
                scores = model(images)
            step.backward(nn.functional.cross_entropy(scores.float(), labels))  # scaled by the scaler that was prepared
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # all workers skip it, or none: they have the same gradients
        scaler.update()
        run.log(scale=scaler.get_scale())


if __name__ == "__main__":
    rubato.main(train)
