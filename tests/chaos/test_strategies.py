"""What a worker tells of its gradients may be less than all, but over the steps nothing is lost or counted twice."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from faulty_run import SEED
from invariants import check_run, values_by_step
from small_job import job

from rubato.data.order import BatchPlan

EPOCHS, SAMPLES, BATCH, MICROBATCHES = 10, 64, 16, 8
STEPS = EPOCHS * SAMPLES // BATCH
# Each sample has an element of `ledger`, a matrix, and of `marks`, a vector, which goes whole. Its gradient is what the
# sample counts in the mean over the batch.
COUNTING = """
import json

EPOCHS = 10
TOKENS = 20.0 * (1 + torch.arange(len(X)) % 7)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.ledger = torch.nn.Parameter(torch.zeros(8, 8))
        self.marks = torch.nn.Parameter(torch.zeros(64))

def train(run):
    session = run._session
    if "machines" in run.config:  # gloo listens at each
        number = int(session.control.start.incarnation.partition(".")[2])
        session.host = f"127.0.0.{1 + number % run.config['machines']}"
    torch.manual_seed(0)
    model = Model()
    huge = 2.0**36 if run.config.get("overflows") else 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / huge)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**94, growth_interval=3) if huge > 1 else None
    dataset = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True), torch.arange(len(X)))
    run.prepare(model=model, optimizer=optimizer, dataset=dataset, scaler=scaler)
    for step in run.steps(epochs=EPOCHS):
        for x, y, ids in step:
            time.sleep(0.4 * Path(run.config["home"], "hold").exists())
            tokens = TOKENS[ids] if run.config.get("weighs") else torch.ones(len(ids))
            counted = (tokens * (model.ledger.flatten() + model.marks)[ids]).sum() / tokens.sum()
            error = torch.nn.functional.mse_loss(model.line(x), y)
            weight = float(tokens.sum()) if run.config.get("weighs") else None
            step.backward(0 * error + huge * counted, weight=weight)
        if scaler is None:
            optimizer.step()
        else:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            run.log(skipped=scaler.get_scale() < before)
        run.log(machines=len(set(session.comm.hosts)) if session.comm else 1)
    aggregation = run._registered.get("rubato.aggregation")
    kept = (aggregation.state_dict()["settled"] if aggregation else None) or {}
    total = -model.ledger.detach().flatten() / 0.01
    for name in ("residual", "stripe"):
        if name in kept:
            total = total + kept[name][:64] / huge  # a module's own parameters come first
    told = {"ledger": total.tolist(), "marks": (-model.marks.detach() / 0.01).tolist()}
    Path(run.config["home"], f"used-{os.getpid()}.json").write_text(json.dumps(told))

if __name__ == "__main__":
    rubato.main(train)
"""
METHODS: dict[str, dict[str, Any]] = {
    "topk": {"density": 0.03},
    "gtopk": {"density": 0.03},
    "hierarchical_topk": {"density": 0.03},
    "threshold": {"threshold": 0.05},
    "onebit": {},
    "powersgd": {"rank": 1},
    "sketch": {"density": 0.03},
    "sketched_sgd": {"density": 0.03},
    "sketch by ring": {"method": "sketch", "density": 0.03},
    "sketch by halving_doubling": {"method": "sketch", "density": 0.03},
    "sketch by native": {"method": "sketch", "density": 0.03},
    "topk that warms up": {"method": "topk", "density": 0.03, "warmup_densities": [0.05, 0.05, 0.05]},
    "topk after whole steps": {"method": "topk", "density": 0.03, "start_step": 3},
}
ALGORITHMS = {"sketch by ring": "ring", "sketch by halving_doubling": "halving_doubling", "sketch by native": "native"}
"""Of the sums of a method, where they are not the default."""


WHOLE: dict[str, dict[str, Any]] = {
    "ring": {"algorithm": "ring"},
    "tree": {"algorithm": "tree"},
    "halving_doubling": {"algorithm": "halving_doubling"},
    "native": {"algorithm": "native"},
    "server": {"algorithm": "server", "servers": 2},
    "fp16": {"compression": {"method": "fp16"}},
    "bf16": {"compression": {"method": "bf16"}},
}


def counting(home: Path, workers: int, method: str, *, compression: dict[str, Any] | None = None, **spec: Any) -> Any:
    chosen = {"method": method, **METHODS.get(method, {}), **(compression or {})}
    aggregation = WHOLE.get(method) or {"algorithm": ALGORITHMS.get(method, "auto"), "compression": chosen}
    return job(home, COUNTING, workers=workers, reproducible=False, aggregation=aggregation, **spec)


def totals(home: Path, workers: int, name: str = "ledger") -> list[list[float]]:
    """By worker and sample, how often it counts in what was applied and what is kept, together."""
    files = list(home.glob("used-*.json"))
    assert len(files) == workers
    return [json.loads(file.read_text())[name] for file in files]


def expected(*, weighs: bool = False, momentum: float = 0.0, skipped: Collection[int] = ()) -> list[float]:
    """By sample, how often it counts in the means of all steps.

    Args:
        weighs: by tokens, as the program says.
        momentum: of an optimizer.
        skipped: steps that count nothing, from 0.
    """
    plan = BatchPlan(SAMPLES, BATCH, MICROBATCHES, seed=0)
    total, velocity = [0.0] * SAMPLES, [0.0] * SAMPLES
    for step in range(STEPS):
        tokens = {one: 20 * (1 + one % 7) if weighs else 1 for one in plan.samples(step, 0, MICROBATCHES)}
        velocity = [momentum * one for one in velocity]
        for sample, count in tokens.items() if step not in skipped else ():
            velocity[sample] += count / sum(tokens.values())
        total = [one + more for one, more in zip(total, velocity, strict=True)]
    return total


def check_all_counted(home: Path, workers: int, **how: Any) -> None:
    for name in ("ledger", "marks"):
        for total in totals(home, workers, name):
            assert total == pytest.approx(expected(**how), abs=1e-4)


def check_lost_as_told(run: Any, home: Path, workers: int, *, lost: int = 1, **how: Any) -> None:
    """What those that were lost took along, who had kept something; what goes whole is all there."""
    events = run.events("gradient.lost")
    assert 0 < len(events) <= lost
    told = sum(event["data"]["norm"] for event in events)
    one, *others = totals(home, workers)
    assert all(other == one for other in others)
    missing = sum((have - due) ** 2 for have, due in zip(one, expected(**how), strict=True)) ** 0.5
    assert 0 < missing <= told + 1e-4, (missing, events)
    for total in totals(home, workers, "marks"):
        assert total == pytest.approx(expected(**how), abs=1e-4)


def scale_and_train(run: Any, workers: int) -> None:
    run.scale(workers)
    run.wait_workers(workers)
    run.wait_step(run.step + 2)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_over_joins_and_leaves_nothing_is_lost_or_counted_twice(tmp_path: Path, method: str) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 1, method) as run:
        run.wait_step(1)
        for workers in (3, 2):
            scale_and_train(run, workers)
        hold.unlink()
        run.result()
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "scale_up", "scale_down"], run.told()
    assert not run.events("gradient.lost")
    check_all_counted(tmp_path, 2)
    check_run(run, fault=f"a join and a leave, {method}")


@pytest.mark.parametrize("method", sorted(WHOLE))
def test_what_is_exchanged_whole_loses_nothing_over_joins_losses_and_leaves(tmp_path: Path, method: str) -> None:
    """What each sample counts in a batch of 16 has no more than 16 bits."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 1, method) as run:
        run.wait_step(1)
        scale_and_train(run, 4)
        run.kill_and_wait([0])  # of those that add up for all, too
        run.wait_step(run.step + 2)
        scale_and_train(run, 3)
        hold.unlink()
        run.result()
    causes = {event["data"]["cause"] for event in run.formed()}
    assert {"start", "scale_up", "recovery", "scale_down"} <= causes, run.told()
    assert not run.events("gradient.lost")
    check_all_counted(tmp_path, 3)
    check_run(run, fault=f"a join, SIGKILL of rank 0 and a leave, {method}")


LOST = [
    pytest.param("topk", SEED % 3, id="topk", marks=pytest.mark.short),
    *(pytest.param(method, SEED % 3, id=method) for method in sorted({*METHODS} - {"topk"})),
    pytest.param("sketched_sgd", 0, id="sketched_sgd, its centre"),
]


@pytest.mark.parametrize(("method", "rank"), LOST)
def test_a_lost_worker_takes_along_no_more_than_is_told(tmp_path: Path, method: str, rank: int) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3, method) as run:
        run.wait_step(5)
        run.kill_and_wait([rank])
        run.wait(lambda: len(run.formed()) == 3, "the generation with the other worker")
        hold.unlink()
        run.result()
    check_lost_as_told(run, tmp_path, 3)
    check_run(run, fault=f"SIGKILL of {rank_named(method, rank)}, {method}")


@pytest.mark.parametrize("method", ["topk", "onebit"])
def test_two_that_are_lost_at_once_take_along_no_more_than_is_told(tmp_path: Path, method: str) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 4, method) as run:
        run.wait_step(5)
        run.kill_and_wait([SEED % 4, (SEED + 1) % 4])
        run.wait_workers(4)
        hold.unlink()
        run.result()
    check_lost_as_told(run, tmp_path, 4, lost=2)
    check_run(run, fault=f"SIGKILL of two of four, {method}")


def rank_named(method: str, rank: int) -> str:
    return "the centre" if method == "sketched_sgd" and rank == 0 else "one of three"


def test_a_worker_that_is_lost_while_all_goes_whole_takes_nothing_along(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3, "topk", compression={"start_step": STEPS // 2}) as run:
        run.wait_step(3)
        run.kill_and_wait([SEED % 3])
        run.wait(lambda: len(run.formed()) == 3, "the generation with the other worker")
        hold.unlink()
        run.result()
    assert run.formed()[1]["step"] < STEPS // 2, run.told()
    assert not run.events("gradient.lost")
    check_all_counted(tmp_path, 3)
    check_run(run, fault="SIGKILL of one of three, topk before its start_step")


@pytest.mark.parametrize(("method", "rank"), [pytest.param(*one.values, id=one.id) for one in LOST])
def test_rather_than_lose_what_was_kept_all_go_back(tmp_path: Path, method: str, rank: int) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    rollback = {"on_loss": "rollback"}
    with counting(tmp_path, 3, method, compression=rollback, checkpoint={"every_steps": 3}) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([rank])
        run.wait(lambda: len(run.formed()) == 2, "a restart")
        hold.unlink()
        run.result()
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "restart"]
    assert not run.events("gradient.lost")
    killed, *others = run.events("worker.lost")
    assert killed["data"]["signal"] == "SIGKILL"
    assert all("had kept were lost, and compression.on_loss is rollback" in other["message"] for other in others)
    assert len(others) == 2
    check_all_counted(tmp_path, 3)
    check_run(run, fault=f"SIGKILL of {rank_named(method, rank)}, {method}, rollback")


def test_a_job_that_is_resumed_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    """All are lost, and the newest checkpoint holds what they kept."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 2, "topk", checkpoint={"every_steps": 3}) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([0, 1])
        run.wait(lambda: len(run.formed()) == 2, "a restart")
        hold.unlink()
        run.result()
    assert run.formed()[-1]["data"]["cause"] == "restart"
    check_all_counted(tmp_path, 2)
    check_run(run, fault="SIGKILL of all, topk")


@pytest.mark.parametrize("method", ["threshold", "topk", "powersgd"])
def test_what_is_kept_counts_once_where_steps_have_other_numbers_of_tokens(tmp_path: Path, method: str) -> None:
    """Over a join, a loss with a rollback, and a leave; a step has from 700 to 1,700 tokens."""
    hold = tmp_path / "hold"
    hold.touch()
    rollback, config = {"on_loss": "rollback"}, {"weighs": True}
    with counting(tmp_path, 1, method, compression=rollback, config=config, checkpoint={"every_steps": 3}) as run:
        run.wait_step(1)
        scale_and_train(run, 3)
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([SEED % 3])
        run.wait(lambda: run.formed()[-1]["data"]["cause"] == "restart", "a restart")
        scale_and_train(run, 2)
        hold.unlink()
        run.result()
    assert {"start", "scale_up", "restart", "scale_down"} == {event["data"]["cause"] for event in run.formed()}
    check_all_counted(tmp_path, 2, weighs=True)
    check_run(run, fault=f"a join, SIGKILL of one of three with a rollback and a leave, {method} by tokens")


def test_what_is_lost_is_told_in_units_of_the_mean_where_tokens_are_counted(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3, "threshold", config={"weighs": True}) as run:
        run.wait_step(5)
        run.kill_and_wait([SEED % 3])
        hold.unlink()
        run.result()
    check_lost_as_told(run, tmp_path, 3, weighs=True)
    (event,) = run.events("gradient.lost")
    assert event["data"]["norm"] < 1.0, "in tokens it would be a hundred times as much"
    check_run(run, fault="SIGKILL of one of three, threshold by tokens")


@pytest.mark.parametrize("method", ["topk", "onebit"])
def test_steps_that_overflow_leave_what_is_kept_as_it_is(tmp_path: Path, method: str) -> None:
    """A GradScaler skips them, before and after a join, a loss and a leave."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 1, method, config={"overflows": True}) as run:
        run.wait_step(1)
        scale_and_train(run, 3)
        run.kill_and_wait([SEED % 3])
        run.wait_step(run.step + 2)
        scale_and_train(run, 2)
        hold.unlink()
        run.result()
    causes = [event["data"]["cause"] for event in run.formed()]
    assert causes == ["start", "scale_up", "recovery", "replace", "scale_down"], run.told()
    skipped = {step - 1 for step, values in values_by_step(run).items() if values["skipped"]}
    recovered = run.formed()[2]["step"]
    assert 3 < len(skipped) < STEPS / 2
    assert min(skipped) < recovered < max(skipped)
    check_lost_as_told(run, tmp_path, 2, skipped=skipped)
    check_run(run, fault=f"a join, SIGKILL of one of three and a leave, {method} with a GradScaler that overflows")


def test_momentum_is_gathered_once_over_joins_and_leaves(tmp_path: Path) -> None:
    """While all is exchanged whole it is what an optimizer would make of it."""
    hold = tmp_path / "hold"
    hold.touch()
    momentum = {"momentum": 0.5, "start_step": STEPS}
    with counting(tmp_path, 1, "topk", compression=momentum) as run:
        run.wait_step(1)
        for workers in (3, 2):
            scale_and_train(run, workers)
        hold.unlink()
        run.result()
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "scale_up", "scale_down"], run.told()
    check_all_counted(tmp_path, 2, momentum=0.5)
    check_run(run, fault="a join and a leave, momentum correction, whole")


@pytest.mark.parametrize("method", ["topk", "sketch", "sketched_sgd"])
@pytest.mark.parametrize("on_loss", ["continue", "rollback"])
def test_momentum_correction_loses_no_more_than_is_told(tmp_path: Path, method: str, on_loss: str) -> None:
    """Over a join, a loss and a leave. A gradient counts once at least; with momentum, until it travels, a little more.

    So little momentum, that a step which is left out or counted twice would be seen.
    """
    hold = tmp_path / "hold"
    hold.touch()
    momentum, corrected = 0.02, {"momentum": 0.02, "on_loss": on_loss}
    with counting(tmp_path, 1, method, compression=corrected, checkpoint={"every_steps": 4}) as run:
        run.wait_step(1)
        scale_and_train(run, 3)
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        formed = len(run.formed())
        run.kill([SEED % 3])
        run.wait(lambda: len(run.formed()) > formed, "a generation without it")
        run.wait_workers(3)
        scale_and_train(run, 2)
        hold.unlink()
        run.result()
    causes = {event["data"]["cause"] for event in run.formed()}
    assert {"scale_up", "recovery" if on_loss == "continue" else "restart", "scale_down"} <= causes, run.told()
    lost = [event["data"]["norm"] for event in run.events("gradient.lost")]
    assert len(lost) <= (on_loss == "continue")
    for total in totals(tmp_path, 2):
        missing = sum(max(0.0, EPOCHS / BATCH - one) ** 2 for one in total) ** 0.5
        assert missing <= sum(lost) + 1e-4
        assert max(total) <= EPOCHS / BATCH / (1 - momentum) + 1e-4
    for total in totals(tmp_path, 2, "marks"):
        assert total == pytest.approx(expected(momentum=momentum), abs=1e-4)
    check_run(run, fault=f"a join, SIGKILL of one of three and a leave, {method} with momentum, {on_loss}")


def test_a_node_keeps_what_it_did_not_tell_other_nodes(tmp_path: Path) -> None:
    """Two machines of two workers each, which are addresses of this one; one of them is killed."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 4, "hierarchical_topk", config={"machines": 2}) as run:
        run.wait_step(5)
        run.kill_and_wait([SEED % 4])
        run.wait_step(run.step + 2)
        hold.unlink()
        run.result()
    assert {values["machines"] for values in values_by_step(run).values()} == {2.0}
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "recovery", "replace"], run.told()
    check_lost_as_told(run, tmp_path, 4)
    check_run(run, fault="SIGKILL of one of four on two machines, hierarchical_topk")
