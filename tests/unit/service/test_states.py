from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.wire.cluster import ObservedState, OutcomeState, RunWish
from rubato.wire.status import ALLOWED, FINAL, Status
from service.states import WITH_CONTROLLER, IllegalTransition, StatusView, decide_status, route

S = Status
VIEWS = st.builds(
    StatusView,
    status=st.sampled_from(list(Status)),
    desired_run=st.sampled_from(get_args(RunWish)),
    is_attempt_live=st.booleans(),
    is_lease_lost=st.booleans(),
    observed=st.none() | st.sampled_from(get_args(ObservedState)),
    outcome=st.none() | st.sampled_from(get_args(OutcomeState)),
    is_preempted=st.booleans(),
)


def _is_possible(view: StatusView) -> bool:
    """What the use-cases let come about: wishes are refused in some statuses, and only a live attempt speaks."""
    if view.status in (S.QUEUED, S.PAUSED) and (view.is_attempt_live or view.outcome):
        return False
    if view.status in (S.RUNNING, S.RECOVERING, S.PAUSING) and not view.is_attempt_live:
        return False
    if view.outcome is not None and not view.is_attempt_live:
        return False
    if view.is_preempted and view.status not in WITH_CONTROLLER:
        return False
    if view.desired_run == "run" and not view.is_preempted and view.status is S.PAUSING:
        return False
    if view.desired_run == "run" and view.status is S.STOPPING:
        return False
    return not (view.status is S.STOPPING and view.desired_run != "stop")


@given(VIEWS.filter(_is_possible))
def test_every_decision_can_be_walked(view: StatusView) -> None:
    decision = decide_status(view)
    here = view.status
    for following in route(view.status, decision.status):
        assert following in ALLOWED[here]
        here = following
    assert here is decision.status
    assert decision.because


@given(VIEWS)
def test_a_final_status_is_never_left(view: StatusView) -> None:
    if view.status in FINAL:
        assert decide_status(view).status is view.status


@given(VIEWS.filter(_is_possible))
def test_deciding_again_changes_nothing(view: StatusView) -> None:
    first = decide_status(view).status
    is_over = first not in WITH_CONTROLLER
    again = StatusView(
        status=first,
        desired_run=view.desired_run,
        is_attempt_live=view.is_attempt_live and not is_over and view.outcome is None,
        is_lease_lost=view.is_lease_lost and not is_over,
        observed=None if is_over else view.observed,
        is_preempted=view.is_preempted and not is_over,
    )
    if view.outcome == "paused" and view.desired_run == "run":
        return
    assert decide_status(again).status is first


@given(VIEWS.filter(_is_possible))
def test_an_acknowledged_cancel_wins(view: StatusView) -> None:
    if view.desired_run == "stop" and view.status not in FINAL:
        assert decide_status(view).status in (S.STOPPING, S.CANCELLED)
        if view.outcome is not None:
            assert decide_status(view).status is S.CANCELLED


@given(VIEWS.filter(_is_possible))
def test_a_preempted_job_pauses_and_comes_back_to_the_queue_unless_its_user_says_otherwise(view: StatusView) -> None:
    if not view.is_preempted or view.desired_run != "run":
        return
    decided = decide_status(view).status
    if view.outcome in ("paused", "requeue"):
        assert decided is S.QUEUED
    elif view.outcome is None:
        assert decided is (S.PAUSING if view.is_attempt_live else S.QUEUED)


@given(VIEWS.filter(_is_possible))
def test_silence_alone_ends_nothing(view: StatusView) -> None:
    if view.is_lease_lost and view.outcome is None and view.status not in FINAL and view.is_attempt_live:
        assert decide_status(view).status not in FINAL


@pytest.mark.parametrize(
    ("start", "target", "path"),
    [
        (S.RUNNING, S.RUNNING, ()),
        (S.RECOVERING, S.RUNNING, (S.STARTING, S.RUNNING)),
        (S.RUNNING, S.STARTING, (S.RECOVERING, S.STARTING)),
        (S.STARTING, S.SUCCEEDED, (S.RUNNING, S.SUCCEEDED)),
        (S.RUNNING, S.QUEUED, (S.RECOVERING, S.QUEUED)),
        (S.RUNNING, S.PAUSED, (S.PAUSING, S.PAUSED)),
        (S.PAUSING, S.QUEUED, (S.PAUSED, S.QUEUED)),
        (S.QUEUED, S.CANCELLED, (S.STOPPING, S.CANCELLED)),
        (S.PAUSED, S.CANCELLED, (S.STOPPING, S.CANCELLED)),
    ],
)
def test_routes_take_the_shortest_honest_way(start: Status, target: Status, path: tuple[Status, ...]) -> None:
    assert route(start, target) == path


def test_no_route_names_both_ends() -> None:
    with pytest.raises(IllegalTransition, match=r"no way from paused to succeeded"):
        route(S.PAUSED, S.SUCCEEDED)
    with pytest.raises(IllegalTransition, match=r"stopping to succeeded: stopping may become cancelled"):
        route(S.STOPPING, S.SUCCEEDED)


def test_only_one_function_changes_a_status() -> None:
    """`status` of a job is written by `change_status`, and set once where the row is made."""
    found = []
    for path in sorted(Path("service").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Attribute) and target.attr == "status" for target in targets):
                found.append(f"{path.name}: assignment")
            if isinstance(node, ast.Call) and any(keyword.arg == "status" for keyword in node.keywords):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in ("values", "Job"):
                    found.append(f"{path.name}: {called}")
    assert sorted(found) == ["jobs.py: Job", "states.py: values"]
