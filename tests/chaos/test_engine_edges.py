"""Faults at the edges: in an evaluation, at the end, in a pause; slow programs, and workers that cannot join."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from invariants import values_by_step
from redone import check_redone
from small_job import PLAIN, alone, check_alone, expected, hurry, job

from rubato.checkpoint.manifest import open_checkpoint
from rubato.wire.cluster import Failure
from tests.stopping import stopped


def test_a_step_may_take_longer_than_the_deadline_of_a_microbatch(tmp_path: Path) -> None:
    limits = {"hang_timeout": 3}
    with job(tmp_path, PLAIN, workers=1, config={"steps": 2, "pace": 0.6}, limits=limits) as run:
        assert run.result()[0] == 2
        assert not run.events("worker.lost")


BAD_JOINER = """
class Thing:
    def state_dict(self):
        return {"value": 1}
    def load_state_dict(self, state):
        raise ValueError("it cannot be taken over")

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    run.register("thing", Thing())
    for step in run.steps():
        fit(run, step, model, optimizer)
"""


def test_a_joiner_that_cannot_take_over_the_state_is_given_up_with_the_reason(tmp_path: Path) -> None:
    config = {"steps": 300, "pace": 0.05}
    with job(tmp_path, BAD_JOINER, workers=1, config=config) as run:
        run.wait_step(3)
        run.scale(2)
        run.wait(lambda: "no more are added" in run.status()["observed"]["reason"], "giving up")
        assert "it cannot be taken over" in run.status()["observed"]["reason"]
        run.wait_step(run.step + 3)
        check_alone(run, tmp_path, config, fault="joiner that cannot take over the state")
    assert {row["workers"] for row in run.rows()} == {1}


HIDDEN = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    factor = 1.0
    for step in run.steps():
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y) * factor)
        optimizer.step()
        factor *= 0.99
"""


def test_what_influences_gradients_and_is_registered_nowhere_is_found_by_the_audit(tmp_path: Path) -> None:
    """A joiner's factor is another one: equal states, unequal gradients. Its replacement has the same fault."""
    with job(tmp_path, HIDDEN, workers=2, config={"steps": 10**6, "pace": 0.01}) as run:
        run.wait_step(5)
        run.scale(3)
        failure = failed(run)
    first, second = run.events("diverged")
    assert "gradients of one same microbatch differ" in first["message"]
    assert len(set(first["data"]["digests"])) == 2
    assert (failure.failure_class, failure.reason) == ("user", "diverged"), run.told()
    assert "not registered with run.register" in failure.message
    # The members went on in between: it is the joiner that went.
    assert second["step"] > first["step"]


UNEQUAL = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    number = int(os.environ["RUBATO_INCARNATION"].split(".")[1])
    some = torch.utils.data.Subset(DATA, range(16 * number))
    for step in run.steps():
        fit(run, step, model, optimizer)
        if step.index == 3:
            run.evaluate(some, lambda x, y: torch.nn.functional.mse_loss(model(x), y), batch=1)
"""


def failed(run: Any) -> Failure:
    """The failure that the run ends with."""
    found: Failure | None = run.wait_for_end().failure
    assert found is not None, run.told()
    assert not run.events("job.restarting")
    return found


def test_evaluations_of_different_sizes_fail_the_job_and_say_what_to_do(tmp_path: Path) -> None:
    with job(tmp_path, UNEQUAL) as run:
        failure = failed(run)
    assert (failure.failure_class, failure.reason, failure.step) == ("user", "user_code_error", 3), run.told()
    assert "run.evaluate" in failure.message
    assert "16, 32 chunks" in failure.message
    assert not any(event["data"]["signal"] for event in run.events("worker.lost"))


UNEVEN_END = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
    if os.environ["RUBATO_INCARNATION"].endswith(".2"):
        run.evaluate(DATA, lambda x, y: torch.nn.functional.mse_loss(model(x), y), batch=4)
"""


def test_an_evaluation_that_not_all_workers_go_through_fails_the_job_and_names_who_waited(tmp_path: Path) -> None:
    with job(tmp_path, UNEVEN_END, limits={"hang_timeout": 3}) as run:
        failure = failed(run)
    assert (failure.failure_class, failure.reason, failure.step) == ("user", "no_progress", 6), run.told()
    assert "w1.1 had ended the program, and w1.2 (exchange, step 6) waited for it" in failure.message
    assert "run.evaluate" in failure.message


NO_MEMORY = """
from rubato.engine.comm import Communicator

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def refuse(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    for step in run.steps():
        if step.index == 3:
            Communicator._pass_by_gloo = refuse
        fit(run, step, model, optimizer)
"""


def test_an_exchange_that_raises_on_every_worker_fails_the_job_with_the_cause(tmp_path: Path) -> None:
    with job(tmp_path, NO_MEMORY, workers=3) as run:
        failure = failed(run)
    assert (failure.failure_class, failure.reason, failure.step) == ("user", "no_progress", 3), run.told()
    assert "can't allocate memory" in failure.message
    assert "give each worker more memory" in failure.message
    assert not any(event["data"]["signal"] == "SIGABRT" for event in run.events("worker.lost"))


HELD = """
def hold(run, where):
    home = Path(run.config["home"])
    if run.config["at"] == where:
        (home / f"here-{os.getpid()}").touch()
        until(home / "go")

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def loss(x, y):
        hold(run, "evaluation")
        return torch.nn.functional.mse_loss(model(x), y)

    for step in run.steps():
        fit(run, step, model, optimizer)
        if step.index == 3:
            run.log(held=run.evaluate(DATA, loss, batch=16))
        if step.index == 4:
            hold(run, "between reduction and commit")
    hold(run, "after the last step")

if __name__ == "__main__":
    rubato.main(train)
"""


@pytest.mark.parametrize("at", ["evaluation", "between reduction and commit", "after the last step"])
def test_a_kill_there_changes_no_bit(tmp_path: Path, at: str) -> None:
    with job(tmp_path, HELD, workers=3, config={"at": at}) as run:
        run.wait(lambda: len(list(tmp_path.glob("here-*"))) == 3, "all to be there")
        run.kill([0])
        run.wait(lambda: bool(run.events("worker.lost")), "the loss")
        (tmp_path / "go").touch()
        result = run.result()
        assert [row["step"] for row in run.rows()] == list(range(1, 7))
    check_redone(run)
    assert result == (6, expected(tmp_path, {"at": at}))


EVALUATES = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def loss(x, y):
        (Path(run.config["home"]) / f"here-{os.getpid()}").touch()
        until(Path(run.config["home"]) / "go")
        return torch.nn.functional.mse_loss(model(x), y)

    for step in run.steps():
        fit(run, step, model, optimizer)
        run.log(held=run.evaluate(DATA, loss, batch=5))

if __name__ == "__main__":
    rubato.main(train)
"""


def test_a_join_and_a_loss_amid_evaluations_change_no_bit(tmp_path: Path) -> None:
    """A joiner stands by while the members evaluate, and repeats evaluations as it does updates; another is killed."""
    config = {"steps": 100, "pace": 0.01}
    with job(tmp_path, EVALUATES, workers=2, config=config) as run:
        run.wait(lambda: len(list(tmp_path.glob("here-*"))) == 2, "both in an evaluation")
        run.scale(4)
        run.wait(lambda: len(run.events("worker.ready")) == 4, "the joiners")
        (joiner,) = [one["pid"] for one in run.status()["workers"] if one["worker_id"].endswith(".3")]
        os.kill(joiner, signal.SIGKILL)
        (tmp_path / "go").touch()
        run.wait_workers(4)
        members = {one["pid"] for one in run.members()}
        survivors = members.difference(run.kill([1]))
        result = run.result()
        rows = {row["step"]: row["values"]["held"] for row in run.rows()}
    assert sorted(rows) == list(range(1, 101))
    assert result == (100, expected(tmp_path, config))
    assert [event["data"]["signal"] for event in run.events("worker.lost")] == ["SIGKILL"] * 2
    evaluated = {int(path.name.removeprefix("here-")) for path in tmp_path.glob("here-*")}
    assert survivors <= evaluated, "those that joined took no share of the evaluations"
    assert joiner not in evaluated, "it was no member yet"


def test_a_stopped_worker_that_goes_on_and_a_loss_in_a_pause_cost_nothing(tmp_path: Path) -> None:
    config, kept = {"steps": 300, "pace": 0.05}, str(tmp_path / "kept")
    with job(tmp_path, PLAIN, workers=3, config=config, checkpoint_dir=kept) as run:
        run.wait_step(3)
        with stopped(run.members()[1]["pid"]):
            until = time.monotonic() + 5
            run.wait(lambda: time.monotonic() > until, "five seconds")
        step = run.step
        run.wait_step(step + 2)
        assert not run.events("worker.lost")
        run.run.answer({"verb": "pause"})
        run.kill([0])
        assert run.wait_for_end().state == "paused"
        saved = run.events("checkpoint.committed")[-1]
        assert saved["step"] == run.rows()[-1]["step"]
    check_redone(run)
    hurry(tmp_path)
    with job(tmp_path, PLAIN, workers=2, config=config, checkpoint_dir=kept) as rest:
        result = rest.result()
    undisturbed = alone(tmp_path, config)
    assert [row["step"] for row in run.rows() + rest.rows()] == list(range(1, 301))
    assert values_by_step(run) | values_by_step(rest) == undisturbed.rows
    assert result == (300, undisturbed.digest)


SLOW_WRITER = """
from rubato.checkpoint.stripes import Stripe

def hold_the_writer_of_stripe_1(home):
    write = Stripe.write
    def held(stripe, folder):
        mark = home / "writer"
        if stripe.index == 1 and not mark.exists():
            (home / "writing").write_text(str(os.getpid()))
            (home / "writing").rename(mark)
            until(home / "never")
        return write(stripe, folder)
    Stripe.write = held

def train(run):
    hold_the_writer_of_stripe_1(Path(run.config["home"]))
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
"""


@pytest.mark.short
def test_a_checkpoint_outlives_the_worker_that_is_writing_it(tmp_path: Path) -> None:
    config = {"steps": 200, "pace": 0.05}
    with job(tmp_path, SLOW_WRITER, workers=3, config=config, checkpoint={"every_steps": 4, "keep_last": 99}) as run:
        run.wait(lambda: (tmp_path / "writer").exists(), "a worker that is stuck in its write")
        assert not run.events("checkpoint.committed")
        os.kill(int((tmp_path / "writer").read_text()), signal.SIGKILL)
        run.wait(lambda: bool(run.events("checkpoint.committed")), "the checkpoint that it was writing")
        check_alone(run, tmp_path, config, fault="SIGKILL of a checkpoint's writer")
    assert len(run.events("worker.lost")) == 1
    first = run.events("checkpoint.committed")[0]
    assert first["data"]["checkpoint_id"] == "1-4"
    names = [file["name"] for file in first["data"]["files"]]
    assert [name for name in names if name.startswith("stripe")] == [
        f"stripe-0000{index}-of-00003.safetensors" for index in range(3)
    ], "the cut of the three that were there"
    open_checkpoint(run.run.checkpoints / "1-4")


def test_a_checkpoint_whose_writers_die_leaves_nothing_on_storage(tmp_path: Path) -> None:
    """Neither while others train on, once they have made another one, nor where all are lost."""
    config = {"steps": 300, "pace": 0.05}
    with job(tmp_path, SLOW_WRITER, workers=3, config=config, checkpoint={"every_steps": 4, "keep_last": 99}) as run:
        folder = stuck_checkpoint(run, tmp_path)
        run.kill([1, 2])  # the writer, and the one that keeps a copy of its part
        run.wait(lambda: bool(run.events("checkpoint.committed")), "another checkpoint")
        assert run.events("checkpoint.committed")[0]["step"] > 4
        run.wait(lambda: not folder.exists(), "the end of what was begun")
        run.wait_workers(3)

        (tmp_path / "writer").unlink()
        folder = stuck_checkpoint(run, tmp_path)
        run.kill([0, 1, 2])
        run.wait(lambda: bool(run.events("job.restarting")), "the loss of all")
        run.wait(lambda: not folder.exists(), "the end of what was begun")
        check_alone(run, tmp_path, config, fault="SIGKILL of all who have a checkpoint's part")
    assert len(run.events("worker.lost")) == 5


def stuck_checkpoint(run: Any, home: Path) -> Path:
    """The folder of a checkpoint of which a part is written, and another never will be."""
    run.wait(lambda: (home / "writer").exists(), "a worker that is stuck in its write")
    root = Path(str(run.run.checkpoints))

    def unfinished() -> list[Path]:
        return [path.parent for path in root.glob("*/stripe-00000*") if not (path.parent / "manifest.json").exists()]

    run.wait(lambda: bool(unfinished()), "another part")
    (folder,) = set(unfinished())
    return folder
