from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.coordinator.starting import (
    LEAST_RETRIES,
    LONGEST_WAIT_S,
    OWN_ROUNDS,
    Death,
    GiveUp,
    Retry,
    Starting,
    decide_start,
)


def killed(number: int) -> Death:
    return Death(number, is_own=False, how="was killed by SIGKILL")


def crashed(number: int) -> Death:
    return Death(number, is_own=True, how="was killed by SIGSEGV")


def test_those_that_were_started_together_are_one_round() -> None:
    starting = Starting(retries=5)
    first = starting.on_death(killed(2), newest=4, now=10.0, is_training=False)
    assert first == Retry(0.5, "workers died once before they could train; the last one was killed by SIGKILL")
    assert not starting.may_start(10.4)
    assert starting.may_start(10.5)
    for number in (1, 3, 4):
        assert starting.on_death(killed(number), newest=4, now=20.0, is_training=False) is None
    assert starting.may_start(10.5), "they do not make it longer"
    second = starting.on_death(killed(5), newest=8, now=30.0, is_training=False)
    assert isinstance(second, Retry)
    assert second.wait_s == 1.0


def test_a_crash_counts_once_in_a_round_that_a_kill_began() -> None:
    starting = Starting(retries=50)
    for newest in (3, 6, 9):
        starting.on_death(killed(newest - 2), newest, 0.0, is_training=True)
        decision = starting.on_death(crashed(newest - 1), newest, 0.0, is_training=True)
        assert starting.on_death(crashed(newest), newest, 0.0, is_training=True) is None
    assert isinstance(decision, GiveUp)
    assert decision.is_own
    assert "3 times in a row" in starting.given_up
    assert not starting.may_start(1e9)
    starting.forget()
    assert starting.may_start(0.0)


@given(st.integers(0, 20), st.integers(0, 30))
def test_kills_before_anybody_trains_are_bounded_and_the_waits_grow(allowed: int, rounds: int) -> None:
    starting, waits = Starting(allowed), [0.0]
    for number in range(1, rounds + 1):
        decision = starting.on_death(killed(number), number, 0.0, is_training=False)
        if number > max(allowed, LEAST_RETRIES):
            assert decision == GiveUp(is_own=False, because=starting.given_up)
            break
        assert isinstance(decision, Retry)
        assert decision.wait_s == min(LONGEST_WAIT_S, 2 * waits[-1] or 0.5)
        waits.append(decision.wait_s)


@given(st.integers(1, 10**6), st.integers(0, OWN_ROUNDS))
def test_while_others_train_only_what_is_the_programs_own_is_given_up(rounds: int, own: int) -> None:
    decision = decide_start(rounds, own, killed(1), retries=0, is_training=True)
    assert isinstance(decision, GiveUp) == (own >= OWN_ROUNDS)


def test_a_worker_that_is_killed_for_memory_as_soon_as_it_trains_is_not_replaced_for_ever() -> None:
    starting = Starting(retries=5)
    for number in range(1, OWN_ROUNDS):
        starting.on_entered()
        assert starting.on_early_death(killed(number), now=0.0, is_training=True) is None
        assert starting.retry_at == 0.5 * 2 ** (number - 1)
    starting.on_entered()
    found = starting.on_early_death(killed(OWN_ROUNDS), now=9.0, is_training=True)
    assert isinstance(found, GiveUp)
    assert "3 times in a row soon after they began to train" in found.because
    assert not starting.may_start(1e9)
    starting.on_entered()
    assert not starting.may_start(1e9), "one that was on its way tells nothing yet"
    starting.on_lasting(OWN_ROUNDS)
    assert not starting.may_start(1e9), "it was killed"
    starting.on_lasting(OWN_ROUNDS + 1)
    assert starting.may_start(0.0)


def test_where_all_were_lost_memory_alone_gives_nothing_up() -> None:
    """How often a job begins anew is another matter."""
    starting = Starting(retries=5)
    for number in range(3 * OWN_ROUNDS):
        assert starting.on_early_death(killed(number), now=0.0, is_training=False) is None
    assert starting.may_start(LONGEST_WAIT_S)
