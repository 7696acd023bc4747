"""`run.stop`: all end with the same step, with the bits of a worker alone, whatever happens around it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from invariants import record
from small_job import expected, job, with_each_step

STOP_AT = 5
"""Index of the step that stops."""
CONFIG: dict[str, Any] = {"steps": 40, "stop_at": STOP_AT}

STOPS = """
import signal

def dies(run, where):
    # The first worker that comes here, and nobody after it.
    try:
        (Path(run.config["home"]) / f"died-{where}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
        if run.config.get("evaluates"):
            loss = run.evaluate(DATA, lambda x, y: torch.nn.functional.mse_loss(model(x), y), batch=16)
        if step.index == run.config["stop_at"]:
            if run.config.get("dies") == "before":
                dies(run, "before")
            if run.config.get("only") is None or run._session.rank == run.config["only"]:
                run.stop()
            if run.config.get("dies") == "behind":
                dies(run, "behind")
    run.log(behind=1.0)
    if run.config.get("dies") == "sealed":
        dies(run, "sealed")
        time.sleep(0.3)

if __name__ == "__main__":
    rubato.main(train)
"""


def stopped(home: Path, workers: int, **config: Any) -> Any:
    return job(home, STOPS, workers=workers, config=CONFIG | config, checkpoint_dir=str(home / "kept"))


def check(run: Any, home: Path, fault: str) -> None:
    assert run.result() == (STOP_AT + 1, expected(home, CONFIG))
    assert [row["step"] for row in run.rows()] == list(range(1, STOP_AT + 2))
    assert run.rows()[-1]["values"]["behind"] == 1.0
    assert run.status()["observed"]["total_steps"] == STOP_AT + 1
    manifests = [json.loads(path.read_bytes()) for path in home.glob(f"kept/*-{STOP_AT + 1}/manifest.json")]
    assert len(manifests) == 1
    record(run, fault)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.short), 3])
def test_bits_and_steps_do_not_depend_on_the_worker_count(tmp_path: Path, workers: int) -> None:
    with stopped(tmp_path, workers) as run:
        check(run, tmp_path, f"stopped by its program, {workers} workers")


@pytest.mark.parametrize(
    ("workers", "dies"),
    [
        *((workers, dies) for workers in (2, 3) for dies in ("before", "sealed")),
        (2, "behind"),
        pytest.param(3, "behind", marks=pytest.mark.short),
    ],
)
def test_a_loss_around_the_stop_changes_nothing(tmp_path: Path, workers: int, dies: str) -> None:
    with stopped(tmp_path, workers, dies=dies) as run:
        check(run, tmp_path, f"SIGKILL of 1 of {workers}, {dies} the stop")
        assert len(run.events("worker.lost")) == 1


def test_the_loss_of_all_behind_the_stop_ends_with_the_same_step(tmp_path: Path) -> None:
    """It begins anew, from nothing here, and decides the same again."""
    with stopped(tmp_path, 1, dies="behind") as run:
        assert run.result() == (STOP_AT + 1, expected(tmp_path, CONFIG))
        assert [row["step"] for row in run.rows()] == [*range(1, STOP_AT + 1), *range(1, STOP_AT + 2)]
        assert run.status()["observed"]["total_steps"] == STOP_AT + 1


@pytest.mark.parametrize("at", [3, 4, 5])
def test_workers_that_join_around_the_stop_end_with_the_others(tmp_path: Path, at: int) -> None:
    with stopped(tmp_path, 1, pace=0.02) as run:
        run.wait_step(at)
        run.scale(3)
        check(run, tmp_path, f"1 -> 3 workers {STOP_AT + 1 - at} steps before the stop")


JOINS_WRONG = with_each_step("""
session = run._session
if session.record.joiners and session.reduced == 1 and session.follower is None:
    if session.rank in session.record.joiners:
        next(model.parameters()).detach().view(-1)[0] += 1.0
    run.stop()
if step.index == run.config["stop_at"]:
    run.stop()
""")


@pytest.mark.short
def test_a_joiner_with_a_wrong_state_that_stops_in_its_first_step_is_lost_and_not_the_job(tmp_path: Path) -> None:
    config = {"steps": 2000, "stop_at": 1990, "pace": 0.02}
    with job(tmp_path, JOINS_WRONG, workers=1, config=config) as run:
        run.wait_step(3)
        run.scale(2)
        steps, digest = run.result()
        assert steps < 1990
        assert [event["step"] for event in run.events("diverged")] == [steps]
        assert [event["data"]["worker_id"] for event in run.events("worker.lost")] == ["w1.2"]
        assert run.status()["observed"]["total_steps"] == steps
    assert digest == expected(tmp_path, CONFIG | {"stop_at": steps - 1})


WRONG_BEHIND = with_each_step("""
if step.index == run.config["stop_at"]:
    run.stop()
    if run._session.rank == 1:
        next(model.parameters()).detach().view(-1)[0] += 1.0
    if run._session.rank == 3:
        os.kill(os.getpid(), 9)
""")


@pytest.mark.short
def test_states_are_compared_where_one_is_lost_behind_the_stop(tmp_path: Path) -> None:
    """As the first step of a recovery would."""
    with job(tmp_path, WRONG_BEHIND, workers=4, config=CONFIG, checkpoint_dir=str(tmp_path / "kept")) as run:
        assert run.result() == (STOP_AT + 1, expected(tmp_path, CONFIG))
        record(run, "SIGKILL of 1 of 4 and a wrong bit of another one, behind the stop")
        assert [event["step"] for event in run.events("diverged")] == [STOP_AT + 1]
        assert len(run.events("worker.lost")) == 2


JOINS_OTHERWISE = with_each_step("""
if run._session.follower is not None:
    getattr(run, run.config["calls"])(*((DATA, lambda x, y: 0.0) if run.config["calls"] == "evaluate" else ()))
""")


@pytest.mark.parametrize("calls", ["stop", "evaluate"])
def test_a_joiner_that_does_something_else_than_the_members_says_so(tmp_path: Path, calls: str) -> None:
    """It uses no exchange of a group in which it still follows: that would end all who have the state."""
    config = {"steps": 40, "pace": 0.02, "calls": calls}
    with job(tmp_path, JOINS_OTHERWISE, workers=1, config=config) as run:
        run.wait_step(3)
        run.scale(2)
        run.wait_for_end()
        lost = [event["message"] for event in run.events("worker.lost")]
    here = r"a worker that joined is at the end of step \d+ .*, where the others went on to step \d+"
    there = rf"run\.{calls}(\(\))? was called where step.index was \d+ by rank 1, and not by all workers"
    assert lost
    assert all(re.search(rf"was lost: NotOnAllWorkers: ({here}|{there})", one) for one in lost), lost


@pytest.mark.short
def test_what_was_stopped_stays_so_unless_it_is_to_be_longer(tmp_path: Path) -> None:
    with stopped(tmp_path, 2) as run:
        result = run.result()
    with stopped(tmp_path, 3) as again:
        assert again.result() == result
        assert again.status()["observed"]["total_steps"] == STOP_AT + 1
        assert not again.rows()
    with stopped(tmp_path, 2, steps=STOP_AT + 4) as longer:
        assert longer.result() == (STOP_AT + 4, expected(tmp_path, {"steps": STOP_AT + 4, "stop_at": -1}))


def test_to_stop_on_some_workers_only_is_told_as_that(tmp_path: Path) -> None:

    with job(tmp_path, STOPS, workers=2, config=CONFIG | {"only": 1}) as run:
        outcome = run.wait_for_end()
    assert outcome.state == "failed"
    assert outcome.failure.message.startswith(
        "NotOnAllWorkers: run.stop() was called where step.index was 5 by rank 1, and not by all"
    )
    assert "equal on all of them (what run.evaluate returns" in outcome.failure.message


COMPRESSED = {"reproducible": False, "aggregation": {"compression": {"method": "topk", "density": 0.5}}}


SETTLING = {**COMPRESSED, "checkpoint": {"every_steps": 4}}
"""Behind the step of the evaluation they tell each other what they keep."""


@pytest.mark.parametrize(
    "spec", [{}, {"reproducible": False}, COMPRESSED, SETTLING], ids=["", "fast", "compressed", "settling"]
)
def test_to_evaluate_on_some_workers_only_is_told_as_that(tmp_path: Path, spec: dict[str, Any]) -> None:
    """As in plain data parallelism, where the first rank does."""
    program = STOPS.replace(
        'if run.config.get("evaluates"):', "if step.index == 3 and os.environ['RUBATO_WORKER_ID'] == 'w1.1':"
    )
    with job(tmp_path, program, workers=2, config=CONFIG, **spec) as run:
        outcome = run.wait_for_end()
    assert outcome.state == "failed"
    told = "NotOnAllWorkers: run.evaluate was called where step.index was 3 by rank 0, and not by all workers"
    assert outcome.failure.message.startswith(told)
    assert not run.events("job.restarting"), "with others, none of which evaluates, it would succeed"


@pytest.mark.parametrize("batch", [256, 16], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("rank", [0, 1])
def test_to_evaluate_on_some_workers_in_the_last_step_is_told_as_that(tmp_path: Path, batch: int, rank: int) -> None:
    """The others are at the end, where all exchange a table, too."""
    program = STOPS.replace('if run.config.get("evaluates"):', f"if step.index == 7 and run._session.rank == {rank}:")
    program = program.replace("batch=16", f"batch={batch}")
    with job(tmp_path, program, workers=2, config={"steps": 8, "stop_at": 99}) as run:
        outcome = run.wait_for_end()
    assert outcome.state == "failed"
    told = f"NotOnAllWorkers: run.evaluate was called where step.index was 7 by rank {rank}, and not by all workers"
    assert outcome.failure.message.startswith(told)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"reproducible": False}, id="fast"),
        pytest.param(COMPRESSED, id="compressed"),
        pytest.param({"local_updates": {"method": "local_sgd", "sync_every": 2}}, id="local"),
        pytest.param(
            {"reproducible": False, "local_updates": {"method": "asynchronous", "sync_every": 2}}, id="served"
        ),
    ],
)
def test_other_ways_to_train_are_stopped_alike(tmp_path: Path, spec: dict[str, Any]) -> None:
    with job(tmp_path, STOPS, workers=3, config=CONFIG, **spec) as run:
        assert run.result()[0] == STOP_AT + 1
    assert [row["step"] for row in run.rows()] == list(range(1, STOP_AT + 2))
