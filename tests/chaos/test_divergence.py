"""Bits that flip in the memory of a worker: who is out, what is trusted afterwards, and what it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_run import Chaos, arm, causes, expected, unarmed

from rubato.checkpoint.manifest import open_checkpoint

pytestmark = pytest.mark.timeout(240)
FLIPS_AT = 6
"""In the update of this step, counted from 0: the first state that differs is that of so many steps and one more."""


def flip(chaos: Chaos, **more: object) -> Path:
    return chaos.fault("update", "flip", **{"who": [0], "step": FLIPS_AT, **more})


@pytest.mark.parametrize("spares", [0, 1])
def test_without_a_majority_no_checkpoint_counts_that_was_taken_since_all_agreed(tmp_path: Path, spares: int) -> None:
    """A checkpoint each step: that of the flip has a part by each of the two, and is whole before anybody compares."""
    chaos = Chaos(tmp_path, "a flipped bit of two", workers=2, spares=spares, checkpoint={"every_steps": 1})
    flip(chaos)
    chaos.fault("before parts exchange", "sleep", 1.0, step=FLIPS_AT + 1)  # its manifest is there by then
    with chaos.start() as run:
        chaos.check(run)
    (alarm,) = run.events("diverged")
    assert (alarm["step"], alarm["data"]["agreed_step"]) == (FLIPS_AT + 1, FLIPS_AT)
    assert len(set(alarm["data"]["digests"])) == 2
    committed = [event["data"]["checkpoint_id"] for event in run.events("checkpoint.committed")]
    dropped = [
        event["data"]["checkpoint_id"] for event in run.events("checkpoint.deleted") if "differ" in event["message"]
    ]
    assert dropped == [f"1-{FLIPS_AT + 1}"], "the one of the wrong state"
    assert committed.count(dropped[0]) == 2, "and it was made again, of the right one"
    restart = run.formed()[1]
    assert (restart["data"]["cause"], restart["step"]) == ("restart", FLIPS_AT + 1)
    assert len(run.events("worker.lost")) == 2


def test_a_minority_is_out_and_what_it_saved_does_not_count(tmp_path: Path) -> None:
    """All are lost right after it: the newest checkpoint has a part that the minority wrote."""
    chaos = Chaos(tmp_path, "a flipped bit, then all lost", workers=3, checkpoint={"every_steps": 1})
    flip(chaos)
    chaos.fault("before parts exchange", "sleep", 1.0, step=FLIPS_AT + 1)
    chaos.fault("say Broken", "signal", "SIGKILL", who=[1, 2], step=FLIPS_AT + 1, each=True)
    with chaos.start() as run:
        chaos.check(run)
    assert len(run.events("diverged")) == 1
    assert run.events("job.restarting")
    assert len(run.events("worker.lost")) == 3


def test_a_bit_may_flip_twice_in_a_job(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "two flipped bits", workers=3, config={"digest_every": 1})
    flip(chaos)
    marker = unarmed(flip(chaos, who=[1], step=0))
    with chaos.start() as run:
        run.wait(lambda: "replace" in causes(run), "another in its place")
        arm(marker)
        chaos.check(run)
    assert len(run.events("diverged")) == 2
    assert len(run.events("worker.lost")) == 2


def test_a_flipped_bit_of_a_member_is_not_taken_over_by_a_joiner(tmp_path: Path) -> None:
    """Nobody compares between the flip and the join: the joiner sees it, and then the members who of them it is."""
    chaos = Chaos(tmp_path, "a flipped bit, and a join", workers=3, checkpoint={"every": 3600})
    flip(chaos)
    with chaos.start() as run:
        run.wait_step(FLIPS_AT + 1)
        flipped = run.members()[0]["worker_id"]
        run.scale(4)
        run.wait(lambda: len(run.events("diverged")) == 2, "both alarms")
        run.hold.unlink(missing_ok=True)
        run.result()
    seen, found = run.events("diverged")
    assert FLIPS_AT < seen["step"] <= found["step"] <= seen["step"] + 1, "the members had completed that exchange"
    joined_at = run.events("generation.formed")[1]["step"]
    assert seen["data"]["distrusted"]["after_step"] == joined_at - 1, "who of them it is, is not known yet"
    assert found["data"]["distrusted"]["after_step"] == 0
    assert [event["data"]["worker_id"] for event in run.events("worker.lost")] == ["w1.4", flipped]


def test_states_that_differ_again_without_having_agreed_fail_the_job(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "bits that flip always", workers=2, config={"digest_every": 1})
    flip(chaos, always=True)
    with chaos.start() as run:
        run.hold.unlink()
        outcome = run.wait_for_end()
    assert outcome.failure is not None, run.told()
    assert (outcome.failure.failure_class, outcome.failure.reason) == ("user", "diverged"), run.told()
    assert len(run.events("diverged")) == 2


def test_rows_of_the_wrong_state_are_told_again_and_every_checkpoint_that_is_left_holds(tmp_path: Path) -> None:
    """States are compared two steps after the flip: one of them was trained with a wrong gradient."""
    chaos = Chaos(tmp_path, "a flipped bit, seen late", workers=2, checkpoint={"every_steps": 2, "keep_last": 99})
    flip(chaos)
    with chaos.start() as run:
        result = run.result()
    alone = expected(chaos.model, chaos.steps)
    assert result == (alone.step, alone.digest), run.told()
    (alarm,) = run.events("diverged")
    assert (alarm["step"], alarm["data"]["agreed_step"]) == (FLIPS_AT + 2, FLIPS_AT)
    told = {row["step"]: row["values"]["loss"] for row in run.rows()}
    assert told == {step: values["loss"] for step, values in alone.rows.items()}, "the last word counts"
    folders = [run.run.checkpoints / name for name in run.run.checkpoints.folders()]
    assert len(folders) == chaos.steps // 2
    for folder in folders:
        open_checkpoint(folder)
