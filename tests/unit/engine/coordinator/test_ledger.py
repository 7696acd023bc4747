from __future__ import annotations

from rubato.engine.coordinator.ledger import CheckpointLedger
from rubato.wire.worker import StripeFailed, StripeWritten


def written(index: int, *, step: int = 7, generation: int = 2, count: int = 2) -> StripeWritten:
    return StripeWritten(f"1.{index}", generation, step, f"1-{step}", index, count, ({"name": f"s{index}"},))


def failed(step: int = 7, generation: int = 2) -> StripeFailed:
    return StripeFailed("1.1", f"1-{step}", step, "the disk is full", generation)


def test_a_checkpoint_is_whole_when_all_parts_of_one_generation_are_there() -> None:
    ledger = CheckpointLedger(30.0, request=0)
    assert ledger.on_written(written(0, generation=1)) is None
    assert ledger.on_written(written(1)) is None, "the other part is of an earlier cut"
    assert ledger.on_written(written(0, generation=1)) is None
    whole = ledger.on_written(written(0))
    assert whole is not None
    assert [file["name"] for file in whole.files] == ["s0", "s1"]


def test_a_failure_is_told_once_and_parts_that_come_after_it_leave_nothing_behind() -> None:
    ledger = CheckpointLedger(30.0, request=0)
    assert ledger.on_failed(failed())
    assert not ledger.on_failed(failed())
    assert ledger.on_written(written(0)) is None
    assert not ledger.forget_unfinished()


def test_the_next_generation_may_save_the_step_that_failed() -> None:
    ledger = CheckpointLedger(30.0, request=0)
    ledger.on_failed(failed())
    assert ledger.on_written(written(0, generation=3)) is None
    assert ledger.on_written(written(1, generation=3)) is not None


def test_what_is_older_than_a_whole_checkpoint_is_forgotten() -> None:
    ledger = CheckpointLedger(30.0, request=0)
    ledger.on_written(written(0, step=7))
    ledger.on_failed(failed(step=8))
    ledger.on_written(written(0, step=9))
    assert ledger.on_written(written(1, step=9)) is not None
    assert not ledger.forget_unfinished()


def test_what_the_user_wants_is_asked_of_every_generation_until_it_is_there() -> None:
    ledger = CheckpointLedger(None, request=10)
    assert ledger.next_request(0.0, 1, is_settled=True) is None
    ledger.want(step=5)
    assert ledger.next_request(0.0, 1, is_settled=False) == 11
    assert ledger.next_request(0.1, 1, is_settled=True) is None
    assert ledger.next_request(0.2, 2, is_settled=True) == 12
    ledger.on_committed(4)
    assert ledger.is_wanted, "one of an earlier step is not what was asked for"
    ledger.on_committed(6)
    assert ledger.next_request(0.3, 3, is_settled=True) is None


def test_a_failure_that_was_told_answers_the_user_too() -> None:
    ledger = CheckpointLedger(None, request=0)
    ledger.want(step=5)
    ledger.on_failed(failed(step=7))
    assert ledger.next_request(0.0, 1, is_settled=True) is None
