from __future__ import annotations

from rubato.cli.keeper.backoff import Backoff


def test_waits_double_up_to_a_bound() -> None:
    backoff = Backoff(initial_s=0.5, max_s=3.0)
    assert [backoff.note_end(started_at=0.0, now=1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.next_start_at == 4.0


def test_a_long_life_begins_anew() -> None:
    backoff = Backoff(initial_s=0.5, healthy_after_s=60.0)
    for _ in range(4):
        backoff.note_end(started_at=0.0, now=1.0)
    assert backoff.note_end(started_at=100.0, now=160.0) == 0.5
    assert backoff.failures == 1
    assert backoff.note_end(started_at=160.0, now=161.0) == 1.0
