from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.webhooks.turns import MAX_FAILING, MAX_WEBHOOKS, REST, LastTry, choose_webhooks

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def tried(seconds_ago: float, *, has_failed: bool = False) -> LastTry:
    return LastTry(NOW - timedelta(seconds=seconds_ago), has_failed)


def test_who_was_tried_longest_ago_comes_first_and_new_ones_before_all() -> None:
    last = {"a": tried(1), "b": tried(60, has_failed=True), "c": tried(30)}
    assert choose_webhooks(["a", "b", "c", "new"], set(), last, NOW) == ["new", "b", "c", "a"]


def test_an_endpoint_rests_after_a_try_that_failed() -> None:
    just, over = tried(REST.total_seconds() - 1, has_failed=True), tried(REST.total_seconds(), has_failed=True)
    assert choose_webhooks(["just", "over"], set(), {"just": just, "over": over}, NOW) == ["over"]


def test_who_failed_leaves_slots_to_the_others() -> None:
    failed = [f"failed-{number}" for number in range(20)]
    last = {one: tried(100, has_failed=True) for one in failed} | {"well": tried(1)}
    first = choose_webhooks([*failed, "well"], set(), last, NOW)
    assert (len(first), first[-1]) == (MAX_FAILING + 1, "well")
    assert choose_webhooks(failed, set(first), last, NOW) == [], "also where they were begun before"
    assert choose_webhooks([*failed, "well"], set(failed[:2]), last, NOW) == ["failed-2", "failed-3", "well"]


@given(st.dictionaries(st.integers(0, 30).map(str), st.none() | st.tuples(st.floats(0, 100), st.booleans())), st.data())
def test_there_are_never_more_at_once(known: dict[str, tuple[float, bool] | None], data: st.DataObject) -> None:
    last = {one: tried(state[0], has_failed=state[1]) for one, state in known.items() if state is not None}
    failing = {one for one, try_ in last.items() if try_.has_failed}
    begun = set(data.draw(st.lists(st.sampled_from(sorted(known)), max_size=MAX_WEBHOOKS))) if known else set()
    chosen = choose_webhooks(sorted(known), begun, last, NOW)
    assert len(set(chosen)) == len(chosen)
    assert not set(chosen) & begun
    assert len(chosen) + len(begun) <= MAX_WEBHOOKS
    assert len(failing & set(chosen)) <= max(0, MAX_FAILING - len(failing & begun))
    if not chosen and len(begun) < MAX_WEBHOOKS:
        assert set(known) - begun <= failing
