"""A job that is resumed in the middle has the weights of one that never was, whatever of its gradients travels.

`test_worker_counts` asks the same of workers that are threads, which takes less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_job import forked, write

BODY = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=run.config["momentum"])
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        time.sleep(Path(run.config["home"], "hold").exists() * (step.index >= run.config["every"]))
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""
EVERY, STEPS = 4, 2 * 4
AGGREGATIONS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in ("ring", "tree", "halving_doubling", "native")},
    "server": {"algorithm": "server", "servers": 2},
    **{name: {"compression": {"method": name}} for name in ("fp16", "bf16", "onebit")},
    **{
        name: {"compression": {"method": name, "density": 0.1}}
        for name in ("topk", "gtopk", "hierarchical_topk", "sketch", "sketched_sgd")
    },
    "powersgd": {"compression": {"method": "powersgd", "rank": 1}},
    "threshold": {"compression": {"method": "threshold", "threshold": 0.01}},
    **{
        f"{name} with momentum": {"compression": {"method": name, "density": 0.1, "momentum": 0.9}}
        for name in ("topk", "sketch")
    },
}
LOCAL: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("local_sgd", "diloco", "synchronous")},
    "streaming_diloco": {"method": "streaming_diloco", "fragments": 3, "mix": 0.5},
}
METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    **{name: {"aggregation": one} for name, one in AGGREGATIONS.items()},
    **{name: {"local_updates": {**one, "sync_every": 2}} for name, one in LOCAL.items()},
}
CASES = [
    pytest.param(name, workers, marks=() if (name, workers) == ("topk", 3) else pytest.mark.long)
    for name in METHODS
    for workers in (2, 3, 4)
]


def digest(home: Path, method: str, workers: int, *, interrupted: bool) -> str:
    """Of the weights after all steps, which save in the middle; there, all workers may be lost once.

    A microbatch for each worker, so that none can be moved to a quicker one: the bits depend on who has which.
    """
    home.mkdir()
    hold = home / "hold"
    if interrupted:
        hold.touch()
    with forked(
        home,
        write(home, BODY),
        workers={"initial": workers, "min": 1, "max": workers},
        # Momentum that is gathered before the exchange is none of the optimizer's.
        config={"steps": STEPS, "every": EVERY, "home": str(home), "momentum": 0.0 if "momentum" in method else 0.9},
        batch={"global_size": 24, "num_microbatches": workers},
        reproducible=False,
        **METHODS[method],
        checkpoint={"every_steps": EVERY},
    ) as run:
        if interrupted:
            run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint")
            run.kill(range(workers))
            run.wait(lambda: len(run.formed()) == 2, "a restart")
            hold.unlink()
        step, told = run.result()
    causes = [event["data"]["cause"] for event in run.formed()]
    assert causes == (["start", "restart"] if interrupted else ["start"]), run.told()
    assert step == STEPS
    if interrupted:
        assert run.formed()[-1]["step"] == EVERY + 1, "it went on from the checkpoint in the middle"
    return told


@pytest.mark.parametrize(("method", "workers"), CASES)
def test_it_has_the_weights_of_one_that_was_never_interrupted(tmp_path: Path, method: str, workers: int) -> None:
    assert digest(tmp_path / "lost", method, workers, interrupted=True) == digest(
        tmp_path / "whole", method, workers, interrupted=False
    )
