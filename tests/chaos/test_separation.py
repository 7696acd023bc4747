"""Layers on workers of their own, which come, go and die: what is learned is what one worker learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_job import check_learns_as_alone

PROGRAM = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.front = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x):
        return self.head(self.front(x))

def train(run):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps(epochs=12):
        fit(run, step, model, optimizer)
        if step.is_last_of_epoch:
            run.log(far=run.evaluate(DATA, lambda x, y: (model(x) - y).abs().mean()))

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 24, "num_microbatches": 4},
    "reproducible": False,
    "local_updates": {"method": "layer_separation", "sync_every": 3, "cut": "head"},
}


@pytest.mark.short
def test_joins_losses_and_leaves_change_nothing_of_what_is_learned(tmp_path: Path) -> None:
    """Of a worker amid a round, of the one that has the layers behind the cut, and a scale-down."""
    check_learns_as_alone(tmp_path, PROGRAM, SPEC, how="layer_separation")


def test_nor_where_several_workers_have_the_layers_behind_the_cut(tmp_path: Path) -> None:
    """The first of them leads; where two workers are left, it is alone."""
    spec = {**SPEC, "local_updates": {**SPEC["local_updates"], "keepers": 2}}
    check_learns_as_alone(tmp_path, PROGRAM, spec, how="layer_separation with two keepers", lost=[1, 0])


@pytest.mark.parametrize(
    "formats",
    [{"cut_format": "bf16"}, {"cut_format": "int8"}, {"front_format": "bf16"}],
    ids=lambda one: " ".join(*one.items()),
)
def test_nor_where_numbers_are_rounded_where_they_travel(tmp_path: Path, formats: dict[str, str]) -> None:
    """One worker alone rounds nothing: the losses are near its own."""
    spec = {**SPEC, "local_updates": {**SPEC["local_updates"], **formats}}
    ((name, chosen),) = formats.items()
    check_learns_as_alone(tmp_path, PROGRAM, spec, how=f"layer_separation, {name} {chosen}", rel=0.05)
