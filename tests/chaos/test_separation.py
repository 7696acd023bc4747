"""Layers on workers of their own, which come, go and die: what is learned is what one worker learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_job import check_learns_as_alone, job

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


SLEEPING = """
class Slow(torch.nn.Linear):
    pause_s = 0.0

    def forward(self, x):
        time.sleep(self.pause_s)
        return super().forward(x)

def train(run):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"front": Slow(4, 8), "head": Slow(8, 1)})
    model[run.config["slow"]].pause_s = run.config["pause_s"]
    model.forward = lambda x: model["head"](model["front"](x))
    optimizer = torch.optim.AdamW(model.parameters())
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""


@pytest.mark.short
@pytest.mark.parametrize("slow", ["front", "head"])
def test_what_the_other_side_of_the_cut_takes_is_not_computing(tmp_path: Path, slow: str) -> None:
    """Rank 0, whose times the rows tell, has the layers behind the cut."""
    pause_s, updates = 0.15, SPEC["local_updates"]["sync_every"]
    with job(tmp_path, SLEEPING, config={"slow": slow, "pause_s": pause_s}, **SPEC) as run:
        run.result()
        rows = [row["values"] for row in run.rows() if row["workers"] == 2]
    assert rows, "two workers never trained"
    step_s, compute_s, data_s = (min(row[f"{name}_seconds"] for row in rows) for name in ("step", "compute", "data"))
    slept_s = pause_s * updates
    assert step_s >= slept_s
    assert compute_s >= slept_s if slow == "head" else compute_s < slept_s / 2
    assert data_s == 0, "it reads no samples"
    assert all(row["compute_seconds"] + row["data_seconds"] <= row["step_seconds"] for row in rows)
