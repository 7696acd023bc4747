"""The engine's fault table (docs/faults.md): real processes, real signals, and the bits of one undisturbed worker.

What cannot be timed from outside, the program does to itself (`tests/programs/faulty.py`); a test fails where its fault
did not happen.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faulty_run import HANG_S, MODELS, SPEC, STEPS, Chaos, arm, causes, expected, marked_pid, unarmed
from invariants import check
from local_job import PROGRAMS, LocalJob
from stopping import is_stopped

pytestmark = pytest.mark.timeout(240)

# --- SIGKILL in each stage --------------------------------------------------------------------------------------------

STAGES = {
    "forward": "forward",
    "backward": "backward",
    "phase A beside the backward pass, before send": "before parts overlap",
    "phase A beside the backward pass": "during parts overlap",
    "phase B beside the backward pass": "during sums overlap",
    "phase A, before send": "before parts exchange",
    "phase A, sent": "during parts exchange",
    "between the phases": "before sums exchange",
    "phase B": "during sums exchange",
    "after phase B": "after sums exchange",
    "between reduction and apply": "update",
    "between apply and report": "call rubato.engine.session:Session.commit",
    "report": "say Committed",
    "checkpoint copy": "call rubato.engine.saver:Saver.save",
    "checkpoint written, not told": "say StripeWritten",
}


def models_for(stage: str) -> list[str]:
    """Those that come to it: sums are sent behind the parts of three buckets, and the smallest has no three."""
    return [one for one in MODELS if one != "cnn" or "sums overlap" not in stage]


@pytest.mark.parametrize("stage", [pytest.param(one, marks=[pytest.mark.short] * (one == "phase B")) for one in STAGES])
def test_sigkill_in(tmp_path: Path, stage: str) -> None:
    chaos = Chaos(tmp_path, f"SIGKILL in {stage}", models=models_for(STAGES[stage]), checkpoint={"every_steps": 5})
    chaos.fault(STAGES[stage], "signal", "SIGKILL")
    with chaos.start() as run:
        chaos.check(run)
    assert [event["data"]["signal"] for event in run.events("worker.lost")] == ["SIGKILL"]
    assert "recovery" in causes(run)
    assert not run.events("job.restarting")


def test_sigkill_while_the_end_is_told(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "SIGKILL at the end")
    chaos.fault("say Ended", "signal", "SIGKILL", step=STEPS)
    with chaos.start() as run:
        chaos.check(run)
    assert [event["data"]["signal"] for event in run.events("worker.lost")] == ["SIGKILL"]


@pytest.mark.parametrize("ranks", [[0], [0, 1], [1, 3], [0, 1, 2], [1, 2, 3]])
def test_sigkill_of_several_at_once(tmp_path: Path, ranks: list[int]) -> None:
    chaos = Chaos(tmp_path, "SIGKILL of all but one" if len(ranks) == 3 else f"SIGKILL of {len(ranks)} of 4", workers=4)
    stages = [stage for stage in list(STAGES.values())[:9] if chaos.model in models_for(stage)]
    chaos.fault(chaos.dice.choice(stages), "signal", "SIGKILL", who=ranks, each=True)
    with chaos.start() as run:
        chaos.check(run)
    assert len(run.events("worker.lost")) == len(ranks)
    assert not run.events("job.restarting")


@pytest.mark.parametrize(
    "at", ["call rubato.engine.membership:Membership.recover", "say Broken", "during all_gather enter", "say Entered"]
)
def test_sigkill_during_the_recovery(tmp_path: Path, at: str) -> None:
    chaos = Chaos(tmp_path, "SIGKILL during recovery", workers=4)
    first = chaos.dice.randrange(4)
    others = [rank for rank in range(4) if rank != first]
    step = chaos.dice.randint(4, 14)
    chaos.fault("forward", "signal", "SIGKILL", who=[first], step=step)
    chaos.fault(at, "signal", "SIGKILL", who=others, step=step)
    with chaos.start() as run:
        chaos.check(run)
    assert len(run.events("worker.lost")) == 2


def test_sigkill_of_all(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "SIGKILL of all", checkpoint={"every_steps": 3})
    chaos.fault("forward", "signal", "SIGKILL", who=[0, 1, 2], step=12, each=True)
    with chaos.start() as run:
        chaos.check(run)
    assert run.events("job.restarting")


# --- joins and leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "at", "who"),
    [
        ("joiner dies while it warms up", "setup", "joiner"),
        ("joiner dies standing by", "say Standby", "joiner"),
        ("joiner dies in sync", "during messages join", "joiner"),
        ("member dies in sync", "during messages join", [0, 1]),
        ("joiner dies in its first step", "say Entered", "joiner"),
    ],
)
def test_sigkill_in_a_join(tmp_path: Path, row: str, at: str, who: Any) -> None:
    chaos = Chaos(tmp_path, row, workers=2)
    marker = unarmed(chaos.fault(at, "signal", "SIGKILL", who=who, step=0))
    if at == "say Entered":  # by then it has the state, and the lowest free rank
        chaos.faults[0]["who"] = [2, 3]
    with chaos.start() as run:
        run.wait_step(3)
        arm(marker)
        run.scale(4)
        pid = marked_pid(run, marker)
        run.wait(lambda: pid not in {one["pid"] for one in run.status()["workers"]}, "the loss")
        run.wait_workers(4)
        chaos.check(run)
    assert len(run.events("worker.lost")) == 1


def test_a_joiner_hears_of_a_revoke_while_it_says_that_it_failed(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "revoke while a joiner says that it failed", workers=2)
    chaos.fault("call rubato.engine.join:receive_snapshot", "raise", "nothing came", who="joiner", step=0)
    marker = chaos.fault("say FormFailed", "sleep", 3.0, who="joiner", step=0)
    with chaos.start() as run:
        run.wait_step(5)
        run.scale(3)
        marked_pid(run, marker)
        run.kill([1])
        run.wait(lambda: "recovery" in causes(run), "the recovery")
        run.wait_workers(3)
        chaos.check(run)
    assert len(run.events("worker.lost")) == 1, "the joiner did not answer, and was taken for hung"


def test_a_spare_worker_takes_the_place_of_one_that_is_killed(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "SIGKILL with a spare worker", spares=1)
    marker = unarmed(chaos.fault("forward", "signal", "SIGKILL", step=0))
    with chaos.start() as run:
        run.wait(lambda: len(run.events("worker.ready")) == 4, "the spare")
        arm(marker)
        run.wait(lambda: "replace" in causes(run), "the replacement")
        run.wait(lambda: len(run.events("worker.ready")) == 5, "another spare")
        chaos.check(run)
    first_four = {event["data"]["worker_id"] for event in run.events("worker.started")[:4]}
    (replaced,) = [event["data"] for event in run.formed() if event["data"]["cause"] == "replace"]
    assert {member["worker_id"] for member in replaced["members"]} < first_four


def test_a_leaver_is_killed_before_it_says_so(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "SIGKILL in drain")
    chaos.fault("say Left", "signal", "SIGKILL", who="any", step=0)
    # Where it is slow the others have gone on without it, which is all that it has to say then.
    chaos.faults.append({**chaos.faults[0], "at": "say Broken"})
    with chaos.start() as run:
        run.wait_step(5)
        run.scale(2)
        run.wait_workers(2)
        chaos.check(run)


def test_workers_leave_while_others_join(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "leave while joining", workers=2)
    marker = chaos.fault("before messages join", "sleep", 3.0, who="joiner", step=0)
    with chaos.start() as run:
        run.wait_step(3)
        run.scale(4)
        marked_pid(run, marker)
        assert {row["workers"] for row in run.rows()} == {2}, "they have joined already"
        run.scale(1)
        run.wait_workers(1)
        run.wait(lambda: len(run.status()["workers"]) == 1, "nobody else")
        chaos.check(run)


def test_a_slow_joiner_holds_nobody_up(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "slow joiner", workers=2)
    marker = unarmed(chaos.fault("setup", "sleep", 6.0, who="joiner", step=0))
    with chaos.start() as run:
        run.wait_step(3)
        arm(marker)
        run.scale(3)
        marked_pid(run, marker)
        before = run.step
        run.wait_workers(3)
        assert run.step >= before + 3, "the others waited for it"
        chaos.check(run)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("faulty.py", 'reach("update")', 'reach("late")', "code or library versions differ"),
        ("models.py", "nn.Tanh()", "nn.Sigmoid()", "code or library versions differ"),
        ("width.txt", "33", "34", "names, shapes or types of its state differ"),
    ],
    ids=["other code", "other code of a module", "other layout"],
)
def test_a_joiner_of_another_program_is_refused(tmp_path: Path, file: str, old: str, new: str, reason: str) -> None:
    chaos = Chaos(tmp_path, "wrong code" if file.endswith(".py") else "wrong layout", workers=2)
    chaos.model = "mlp"
    programs = tmp_path / "programs"
    shutil.copytree(PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"))
    with LocalJob(
        tmp_path,
        str(programs / "faulty"),
        **SPEC,
        config={"steps": STEPS, "model": "mlp", "home": str(tmp_path)},
        workers={"initial": 2, "min": 1, "max": 3},
    ) as run:
        run.wait_step(3)
        text = (programs / file).read_text()
        assert old in text
        (programs / file).write_text(text.replace(old, new))
        run.scale(3)
        run.wait(lambda: reason in run.told() or reason in run.status()["observed"]["reason"], f"a refusal: {reason}")
        check(run, expected("mlp"), fault=chaos.row)
    assert {row["workers"] for row in run.rows()} == {2}


def test_one_cycle_of_wide_swings(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "1 -> 8 -> 3 -> 5 -> 1", workers=1, steps=500)
    with chaos.start() as run:
        for workers in (8, 3, 5, 1):
            run.wait_step(run.step + 3)
            run.scale(workers)
            run.wait_workers(workers)
        chaos.check(run)
    assert causes(run) == ["start", "scale_up", "scale_down", "scale_up", "scale_down"]


# --- hangs ------------------------------------------------------------------------------------------------------------

PLACES = {"compute": "forward", "communication": "during parts exchange"}


@pytest.mark.parametrize("place", PLACES)
def test_a_short_stop_costs_nothing_but_its_time(tmp_path: Path, place: str) -> None:
    chaos = Chaos(tmp_path, f"SIGSTOP 0.2 s in {place}")
    marker = chaos.fault(PLACES[place], "signal", "SIGSTOP")
    with chaos.start() as run:
        pid = marked_pid(run, marker)
        run.wait(lambda: is_stopped(pid), "the stop")
        time.sleep(0.2)  # the outage itself
        os.kill(pid, signal.SIGCONT)
        chaos.check(run)
    assert causes(run) == ["start"]


@pytest.mark.parametrize("place", PLACES)
def test_a_long_stop_is_fenced_and_the_zombie_never_comes_back(tmp_path: Path, place: str) -> None:
    chaos = Chaos(tmp_path, f"SIGSTOP for ever in {place}", limits={"hang_timeout": HANG_S})
    marker = chaos.fault(PLACES[place], "signal", "SIGSTOP")
    with chaos.start() as run:
        pid = marked_pid(run, marker)
        run.wait(lambda: is_stopped(pid), "the stop")
        run.wait(lambda: bool(run.events("worker.lost")), "the fence")
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            print("it was gone by then")
        chaos.check(run)
    (lost,) = run.events("worker.lost")
    assert "did not run" in lost["data"]["cause"]


def test_the_interpreters_lock_is_held_in_c(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "GIL held in C", limits={"hang_timeout": HANG_S})
    chaos.fault("forward", "hold_gil", 3600)
    with chaos.start() as run:
        chaos.check(run)
    (lost,) = run.events("worker.lost")
    assert "did not run" in lost["data"]["cause"]


# --- the program's own end --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Death:
    """How a training process may end by itself, and what is told of it."""

    do: str
    arguments: Sequence[Any]
    told: str
    at: str = "forward"


DEATHS = {
    "SIGSEGV": Death("crash", [], "SIGSEGV"),
    "SIGABRT": Death("signal", ["SIGABRT"], "SIGABRT"),
    "out of memory": Death("allocate", [], "memory"),
    "os._exit(0)": Death("exit", [0], "exited with code 0"),
    "os._exit(7)": Death("exit", [7], "exited with code 7"),
    "exception": Death("raise", ["a chaotic error"], "a chaotic error"),
    "exception in a backward hook": Death("raise", ["a chaotic hook"], "a chaotic hook", "hook"),
    "exception in the update": Death("raise", ["a chaotic update"], "a chaotic update", "update"),
}


@pytest.mark.parametrize("name", DEATHS)
def test_what_happens_once_is_told_and_tried_again(tmp_path: Path, name: str) -> None:
    death = DEATHS[name]
    chaos = Chaos(tmp_path, name)
    chaos.fault(death.at, death.do, *death.arguments)
    with chaos.start() as run:
        chaos.check(run)
    (lost,) = run.events("worker.lost")
    assert death.told in lost["data"]["cause"] + str(lost["data"]["signal"]), lost


@pytest.mark.parametrize("name", ["SIGSEGV", "os._exit(0)", "exception", "exception in a backward hook"])
def test_what_happens_whenever_it_is_tried_fails_the_job(tmp_path: Path, name: str) -> None:
    death = DEATHS[name]
    chaos = Chaos(tmp_path, f"{name}, every time", restart={"backoff": {"initial": 0.1}})
    marker = chaos.fault(death.at, death.do, *death.arguments, who="any", step=6, always=True)
    with chaos.start() as run:
        run.hold.unlink()
        outcome = run.wait_for_end()
    assert marker.exists()
    assert outcome.state == "failed", run.told()
    assert outcome.failure is not None
    assert outcome.failure.failure_class == "user"
    assert outcome.failure.step == 6
    said = f"{outcome.failure.message} {outcome.failure.traceback}"
    assert death.told in said, said
    assert outcome.failure.worker_id in {event["data"]["worker_id"] for event in run.events("worker.lost")}
    if death.do == "raise":
        assert any(death.told in line for line in outcome.failure.last_output), outcome.failure.last_output


# --- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_connections_that_end_are_made_again(tmp_path: Path, place: str) -> None:
    chaos = Chaos(tmp_path, f"sockets reset in {place}")
    chaos.fault(PLACES[place], "reset_links")
    with chaos.start() as run:
        chaos.check(run, lost_touch=1)
    assert "recovery" in causes(run)
    assert not run.events("worker.lost")


def test_half_open_connections_wait_no_longer_than_the_deadline(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "half-open sockets", limits={"hang_timeout": HANG_S})
    chaos.fault("forward", "half_open")
    with chaos.start() as run:
        chaos.check(run, lost_touch=1)
    assert causes(run)[:2] == ["start", "recovery"]
    # No connection ended: nobody knew of it before the deadline.
    assert run.formed()[1]["data"]["paused_seconds"] > HANG_S / 2
    assert not run.events("worker.lost")


def test_connections_that_are_half_open_while_a_generation_is_entered_cost_a_deadline(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "half-open sockets while entering", limits={"hang_timeout": HANG_S})
    chaos.fault("backward", "signal", "SIGKILL", who=[0], step=6)
    # From step 1 on: the other one may have missed the step before, and be behind.
    chaos.fault("before all_gather enter", "half_open", who=[1], step=1)
    with chaos.start() as run:
        chaos.check(run, lost_touch=1)
    assert causes(run)[:2] == ["start", "recovery"]
    assert run.formed()[1]["data"]["paused_seconds"] > HANG_S / 2
    assert len(run.events("worker.lost")) == 1


def test_a_slow_network_fences_nobody(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "20 kB/s", limits={"hang_timeout": HANG_S}, steps=20)
    chaos.fault("forward", "throttle_links", 20_000, who=[0, 1, 2], step=4, each=True)
    with chaos.start() as run:
        chaos.check(run)
    assert causes(run) == ["start"]
    # Every worker sends some thousand bytes a step to each other one.
    slow = sorted(row["values"]["step_seconds"] for row in run.rows()[8:])
    assert slow[len(slow) // 2] > 0.1, "nothing was slow"


def test_delay_alone_fences_nobody(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "200 ms delay", limits={"hang_timeout": HANG_S}, steps=20)
    chaos.fault("before parts exchange", "sleep", 0.2, who="any", step=4, always=True)
    with chaos.start() as run:
        chaos.check(run)
    assert causes(run) == ["start"]
    assert all(row["values"]["step_seconds"] >= 0.2 for row in run.rows()[5:])


def test_a_join_over_a_slow_link_is_waited_for_before_too_much_is_kept_for_it(tmp_path: Path) -> None:
    """A step makes 0.8 MB, for which the links to the joiner take longer than the step: it never comes up to date."""
    chaos = Chaos(tmp_path, "join over 1 MB/s", workers=2, steps=240, models=["wide"], config={"least_backlog": 0})
    chaos.fault("before messages join", "throttle_links", 1_000_000, "new", who=[0, 1], step=0, each=True)
    with chaos.start() as run:
        run.wait_step(3)
        run.scale(3)
        run.wait(lambda: all(mark.exists() for mark in chaos.marks()), "the slow links")
        began = run.step
        run.wait_workers(3)
        run.wait_step(run.step + 2)
        run.scale(1)
        run.wait_workers(1)
        chaos.check(run)
    assert "recovery" not in causes(run)
    assert not run.events("worker.lost")
    slow = [row for row in run.rows() if row["workers"] == 3]
    assert max(row["values"]["step_seconds"] for row in slow) > 0.4, "nothing was slow"
    # Four times the state are 12 results of this model.
    assert slow[0]["step"] - began < 40, "what is kept for the joiner has no bound"


def test_a_join_with_delay_fences_nobody(tmp_path: Path) -> None:
    """Each of its messages comes 200 ms late, while the members make a step in a quarter of that."""
    chaos = Chaos(tmp_path, "join with 200 ms delay", workers=2, steps=240)
    chaos.fault("before messages join", "sleep", 0.2, who="any", step=0, always=True)
    with chaos.start() as run:
        run.wait_step(3)
        run.scale(3)
        run.wait_workers(3)
        chaos.check(run)
    assert causes(run)[:2] == ["start", "scale_up"]
    assert "recovery" not in causes(run)
    assert not run.events("worker.lost")


# --- memory -----------------------------------------------------------------------------------------------------------


def test_one_flipped_bit_is_seen_and_its_worker_fenced(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "one flipped bit", config={"digest_every": 1})
    chaos.fault("update", "flip")
    with chaos.start() as run:
        chaos.check(run)
    assert run.events("diverged"), run.told()
    assert len(run.events("worker.lost")) == 1
