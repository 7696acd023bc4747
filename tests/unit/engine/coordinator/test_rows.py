"""Which metric rows the workers may forget, where rows of a past that was left behind are still on their way."""

from __future__ import annotations

from rubato.engine.coordinator import CheckpointFound, CommitManifest, Coordinator, Order, RowsStored
from rubato.engine.coordinator.orders import Terms, Wish
from rubato.engine.coordinator.rows import MAX_SAVED_ROWS, RowBook
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow


def rows(first: int, last: int) -> list[MetricRow]:
    return [MetricRow(step, "2026-01-01T00:00:00Z", 1, 2, {"loss": 1.0}) for step in range(first, last + 1)]


def make() -> RowBook:
    return RowBook(JobState(Terms("job", 1, num_microbatches=4), Wish("run", 2), 0, 0), 0)


def test_rows_are_kept_until_all_of_a_batch_are_stored() -> None:
    book = make()
    book.take(rows(1, 3), 0.0)
    book.take(rows(4, 6), 0.0)
    assert (book.stored, book.are_stored) == (0, False)
    book.on_stored(5)
    assert (book.stored, book.are_stored) == (3, False), "the second batch is not whole"
    book.on_stored(6)
    assert (book.stored, book.are_stored) == (6, True)


def test_what_is_stored_of_a_past_that_was_left_behind_says_nothing_of_the_rows_that_come_again() -> None:
    book = make()
    book.take(rows(1, 10), 0.0)
    book.rewind(4)
    book.take(rows(5, 10), 0.0)
    book.on_stored(10)
    assert (book.stored, book.are_stored) == (4, False), "steps 5 to 10 as they were computed again are on their way"
    book.on_stored(16)
    assert (book.stored, book.are_stored) == (10, True)


def test_what_was_stored_before_it_went_back_is_not_taken_back_in_part() -> None:
    book = make()
    book.take(rows(1, 10), 0.0)
    book.on_stored(10)
    book.rewind(4)
    assert (book.stored, book.are_stored) == (4, True)


def test_a_checkpoint_takes_along_what_is_not_stored_of_the_steps_up_to_its_own() -> None:
    book = make()
    book.take(rows(1, 3), 0.0)
    book.take(rows(4, 8), 0.0)
    book.on_stored(3)
    assert [row.step for row in book.unstored(6)] == [4, 5, 6]
    book.rewind(5)
    book.take(rows(6, 7), 0.0)
    assert [row.step for row in book.unstored(9)] == [4, 5, 6, 7]
    book.on_stored(10)
    assert book.unstored(9) == ()


def test_of_a_long_time_without_a_service_the_newest_rows_are_taken_along() -> None:
    book = make()
    book.take(rows(1, MAX_SAVED_ROWS + 5), 0.0)
    kept = book.unstored(MAX_SAVED_ROWS + 4)
    assert (len(kept), kept[-1].step) == (MAX_SAVED_ROWS, MAX_SAVED_ROWS + 4)


def test_a_checkpoint_waits_for_the_row_of_its_step() -> None:
    """Rank 0 was lost before it told the row; rank 1 has a copy of its part, and tells the row later."""
    coordinator = Coordinator(Terms("job", 1, num_microbatches=4), Wish("run", 2))
    found: list[Order] = coordinator.tick(0.0)

    def say(*messages: object) -> None:
        for message in messages:
            found.extend(coordinator.handle(message, 0.0))

    def part(index: int) -> wire.StripeWritten:
        return wire.StripeWritten("1.2", 1, 2, "1-2", index, 2, (), members=("1.1", "1.2"))

    for one in ("1.1", "1.2"):
        say(wire.Spawned(one, 1, 1, "node"), wire.Hello(one, ""), wire.Standby(one, "layout", "code", 1000))
    say(CheckpointFound(), wire.Entered("1.1", 1, 0), wire.Entered("1.2", 1, 0))
    say(wire.Committed("1.1", 1, 1, tuple(rows(1, 1))), RowsStored(1), wire.Committed("1.2", 1, 2), part(1))
    say(wire.Exited("1.1", None, "SIGKILL"), part(0))
    assert not [one for one in found if isinstance(one, CommitManifest)]
    say(wire.Broken("1.2", 1, True, 2), wire.Entered("1.2", 2, 2))
    say(wire.Committed("1.2", 2, 3, tuple(rows(2, 3))))
    (order,) = [one for one in found if isinstance(one, CommitManifest)]
    assert [row.step for row in order.rows] == [2]


def test_of_a_checkpoint_of_another_job_no_rows_are_waited_for() -> None:
    """Its job had ended: this one begins behind its last step, saves that as its own, and ends."""
    coordinator = Coordinator(Terms("job", 2, num_microbatches=4), Wish("run", 1))
    found: list[Order] = coordinator.tick(0.0)
    for message in (
        wire.Spawned("2.1", 1, 1, "node"),
        wire.Hello("2.1", ""),
        wire.Standby("2.1", "layout", "code", 6),
        CheckpointFound(folder="1-6", step=6),
        wire.Entered("2.1", 1, 6),
        wire.StripeWritten("2.1", 1, 6, "2-6", 0, 1, (), members=("2.1",)),
    ):
        found.extend(coordinator.handle(message, 0.0))
    (order,) = [one for one in found if isinstance(one, CommitManifest)]
    assert (order.folder, order.rows) == ("2-6", ())
