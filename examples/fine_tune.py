"""Fine-tuning: begin from the weights of another job, keep its trunk as it is, and train a new head.

    rubato run examples/digits.py --workers 2 --config epochs=5
    rubato export RUN -o digits.safetensors          # the run's name is what `rubato run` printed; or that of a job
    rubato run examples/fine_tune.py --workers 4 --config weights=$PWD/digits.safetensors --config epochs=5

The new task: is a digit even? What is frozen when `run.steps` begins is not trained, and travels with the checkpoints.
"""

import torch
from digits import build_model, load
from safetensors.torch import load_file
from torch import nn

import rubato


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    trained = build_model()
    trained.load_state_dict(load_file(run.config["weights"]))
    trunk, former_head = trained[0], trained[1]
    model = nn.Sequential(trunk.requires_grad_(requires_grad=False), nn.Linear(former_head.in_features, 2))
    model = model.to(run.device)
    optimizer = torch.optim.AdamW(model[1].parameters(), lr=run.config.get("lr", 0.003))
    train_set, test_set = load()
    run.prepare(model=model, optimizer=optimizer, dataset=train_set)

    def accuracy(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (model(images).argmax(1) == labels % 2).float().mean()

    for epoch in run.epochs():  # steps or epochs of the config
        for step in epoch:
            trunk.eval()  # its running statistics are those of the job it comes from
            for images, labels in step:
                step.backward(nn.functional.cross_entropy(model(images), labels % 2))
            optimizer.step()
        run.log(accuracy=run.evaluate(test_set, accuracy))


if __name__ == "__main__":
    rubato.main(train)
