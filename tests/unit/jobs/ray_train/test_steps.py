"""Steps of Ray Train: counted from the beginning, and on from the step of the checkpoint that a group begins with."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from jobs.ray_train.messages import CheckpointSeen, Reported
from jobs.ray_train.steps import NO_SNAPSHOT, REMEMBERED, Record, Snapshot, StepCount, decode, encode


def snapshot(kept: list[str], index: int) -> Snapshot:
    return Snapshot(kept[-1] if kept else None, tuple(kept), index)


def test_a_snapshot_of_ray_train_is_read() -> None:
    newest = {"checkpoint_dir_name": "b", "metrics": {}}
    text = json.dumps(
        {
            "checkpoint_results": [{"checkpoint_dir_name": "a", "metrics": {}}, newest],
            "latest_checkpoint_result": newest,
            "current_report_index": 7,
        }
    )
    assert Snapshot.parse(text) == Snapshot("b", ("a", "b"), 7)
    empty = json.dumps({"checkpoint_results": [], "latest_checkpoint_result": None, "current_report_index": 2})
    assert Snapshot.parse(empty) == Snapshot(None, (), 2)


def test_a_group_goes_on_behind_the_newest_checkpoint() -> None:
    count = StepCount(1, (), NO_SNAPSHOT)
    assert count.begin_group() == 0
    assert [count.report(), count.report()] == [1, 2]
    count.keep("a", snapshot(["a"], 2))
    assert count.report() == 3
    assert count.begin_group() == 2
    assert count.report() == 3
    later = StepCount(2, count.records, snapshot(["a"], 4))
    assert later.begin_group() == 2


def test_what_is_deleted_is_told_once_and_an_id_that_was_made_again_is_not() -> None:
    count = StepCount(1, (), NO_SNAPSHOT)
    count.report()
    made, deleted = count.keep("a", snapshot(["a"], 1))
    assert (made.checkpoint_id, deleted) == ("1-1", ())
    count.report()
    assert count.keep("b", snapshot(["a", "b"], 2))[1] == ()
    count.report()
    assert count.keep("c", snapshot(["b", "c"], 3))[1] == ("1-1",)
    count.newest_step = 1  # the job went back
    count.begin_group()
    count.report()
    made, deleted = count.keep("d", snapshot(["c", "d"], 5))
    assert (made.checkpoint_id, deleted) == ("1-2", ())


def test_without_the_record_of_the_newest_its_step_follows_from_the_reports_since() -> None:
    records = (Record("a", 4, 6, "1-4"),)
    assert StepCount(2, records, snapshot(["a", "b"], 8)).step == 6
    assert StepCount(2, (), snapshot(["b"], 3)).step == 3


@given(st.lists(st.sampled_from(["report", "save", "group"]), max_size=40), st.integers(1, 3))
def test_steps_rise_by_one_and_fall_back_to_a_checkpoint_only(moves: list[str], num_to_keep: int) -> None:
    count, kept, index = StepCount(1, (), NO_SNAPSHOT), [], 0
    listed: set[str] = set()
    for number, move in enumerate(moves):
        before = count.step
        if move == "group":
            count.begin_group()
            assert count.step == count.newest_step <= before
            continue
        index += 1
        assert count.report() == before + 1
        if move == "save":
            kept = [*kept, f"folder-{number}"][-num_to_keep:]
            made, deleted = count.keep(kept[-1], snapshot(kept, index))
            listed = (listed | {made.checkpoint_id}) - set(deleted)
            assert listed == {record.checkpoint_id for record in count.records}
            assert count.newest_step == count.step
    assert decode(Record, encode(count.records).decode()) == count.records


def test_records_that_do_not_hold_are_none() -> None:
    assert decode(Record, "") == decode(Record, "[1]") == decode(Record, '[{"folder": "a"}]') == ()


def report(step: int, checkpoint_id: str | None = None) -> Reported:
    seen = CheckpointSeen(checkpoint_id, f"job/{checkpoint_id}", 7) if checkpoint_id else None
    return Reported(step, 100.5 + step, {"loss": 0.25}, 2, seen, ("1-0",) if seen else ())


def test_what_is_remembered_ends_with_the_checkpoint_that_a_group_goes_on_from() -> None:
    count = StepCount(1, (), NO_SNAPSHOT)
    for step in (1, 2, 3):
        count.report()
        if step == 2:
            count.keep("a", snapshot(["a"], 2))
        count.remember(report(step))
    assert [one.step for one in count.reports] == [1, 2, 3]
    assert count.begin_group() == 2
    assert [one.step for one in count.reports] == [1, 2]
    later = StepCount(2, count.records, snapshot(["a"], 2), [report(1), report(2), report(3)])
    assert [one.step for one in later.reports] == [1, 2]


def test_a_checkpoint_that_is_not_kept_any_more_is_not_remembered() -> None:
    records = (Record("b", 2, 2, "1-2"),)
    later = StepCount(2, records, snapshot(["b"], 2), [report(1, "1-1"), report(2, "1-2")])
    assert [one.checkpoint and one.checkpoint.checkpoint_id for one in later.reports] == [None, "1-2"]
    assert later.reports[0].deleted == ("1-0",)


def test_no_more_reports_are_remembered_than_fit() -> None:
    count = StepCount(1, (), NO_SNAPSHOT)
    for step in range(REMEMBERED + 5):
        count.remember(report(step))
    assert [one.step for one in count.reports] == list(range(5, REMEMBERED + 5))


def test_reports_are_kept_as_text_and_what_does_not_hold_is_none() -> None:
    reports = (report(1), report(2, "1-2"))
    assert decode(Reported, encode(reports).decode()) == reports
    assert (
        decode(Reported, "")
        == decode(Reported, "[1]")
        == decode(Reported, '[{"step": "a"}]')
        == decode(Reported, "{")
        == ()
    )
