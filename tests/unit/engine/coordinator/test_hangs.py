"""Who is fenced, when, and who never is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.coordinator.hangs import HangPolicy, Lenience, decide_hung, decide_stuck
from rubato.engine.coordinator.roster import WorkerView
from rubato.errors import SpecError
from rubato.wire.progress import STAGES
from rubato.wire.spec import parse_spec
from rubato.wire.worker import Beat, Standby

POLICY = HangPolicy()
MEASURED = {"compute": 0.1, "fetch": 0.01, "exchange": 0.2, "update": 0.05}
NOW = 1000.0


def worker(
    name: str,
    stage: str,
    seconds: float,
    *,
    microbatch: int | None = None,
    silent: float = 0.0,
    usual: dict[str, float] | None = None,
    heard_at: float = NOW,
) -> WorkerView:
    beat = Beat(name, 2, 12, stage, seconds, microbatch, silent, MEASURED if usual is None else usual)
    return WorkerView(f"w{name}", name, 1, 0.0, beat=beat, heard_at=heard_at)


def waits(name: str, seconds: float) -> WorkerView:
    return worker(name, "exchange", seconds)


def fenced(*workers: WorkerView, policy: HangPolicy = POLICY, lenience: Lenience | None = None) -> list[str]:
    return [one.incarnation for one in decide_hung(workers, policy, NOW, lenience=lenience)]


def test_the_one_that_computes_while_others_wait_is_fenced_and_the_reason_names_the_place() -> None:
    (hung,) = decide_hung([waits("1.1", 25), worker("1.2", "compute", 25.4, microbatch=3)], POLICY, NOW)
    assert hung.incarnation == "1.2"
    assert hung.because == ("made no progress for 25 s, in compute, microbatch 3 of step 12; the limit there is 20 s")
    assert hung.facts["microbatch"] == 3


def test_its_silence_is_told_too() -> None:
    (hung,) = decide_hung([waits("1.1", 25), worker("1.2", "compute", 25, silent=25)], POLICY, NOW)
    assert "and its interpreter did not run" in hung.because


def test_who_waits_is_never_at_fault() -> None:
    assert fenced(*(waits(f"1.{n}", 10_000) for n in range(4))) == []


def test_where_nobody_waits_there_is_more_patience() -> None:
    all_slow = [worker(f"1.{n}", "compute", 70) for n in range(4)]
    assert fenced(*all_slow) == []
    assert fenced(worker("1.1", "compute", 81)) == ["1.1"]


def test_a_peer_must_have_waited_as_long() -> None:
    assert fenced(waits("1.1", 2), worker("1.2", "compute", 30)) == []


@pytest.mark.parametrize("stage", ["exchange", "standby", "done", "enter"])
def test_who_does_not_even_wait_is_fenced(stage: str) -> None:
    assert fenced(worker("1.1", stage, 100, silent=21), worker("1.2", stage, 100)) == ["1.1"]


def test_a_joiner_that_does_not_catch_up_is_fenced_but_not_one_that_waits_for_the_members() -> None:
    def joins(seconds: float, behind: int) -> WorkerView:
        found = worker("1.3", "sync", seconds)
        assert found.beat is not None
        found.beat = replace(found.beat, step=found.beat.step - behind)
        return found

    members = [worker("1.1", "compute", 0.1), worker("1.2", "compute", 0.1)]
    assert fenced(*members, joins(599, 5)) == []
    assert fenced(*members, joins(601, 5)) == ["1.3"]
    assert fenced(*members, joins(601, 1)) == [], "the members are at a long step"
    assert fenced(*members, joins(601, 5), lenience=Lenience({"sync": 2.0})) == []


def test_a_joiner_that_all_wait_for_has_no_more_time_than_a_member() -> None:
    """The members have switched already; it stands still while it repeats a step, and is in no generation yet."""
    joiner = worker("1.3", "update", 61)
    assert joiner.beat is not None
    joiner.beat, joiner.standby = replace(joiner.beat, generation=0), Standby("1.3", "layout", "code", 100)
    assert fenced(waits("1.1", 61), waits("1.2", 61), joiner) == ["1.3"]
    assert fenced(waits("1.1", 5), waits("1.2", 5), joiner) == [], "they do not wait for it"
    joiner.standby = None
    assert fenced(waits("1.1", 61), waits("1.2", 61), joiner) == []


def test_a_supervisor_that_says_nothing() -> None:
    assert fenced(worker("1.1", "standby", 1, heard_at=NOW - 31), worker("1.2", "standby", 1)) == ["1.1"]


@pytest.mark.parametrize(("placed_s", "out"), [(None, []), (599.0, []), (601.0, ["1.1"])])
def test_one_that_never_says_anything_is_fenced_once_it_has_a_process(placed_s: float | None, out: list[str]) -> None:
    """It stands still before its program is loaded: no word of progress is there to be read."""
    silent = WorkerView("w1.1", "1.1", 1, 0.0, heard_at=NOW - (placed_s or 10_000.0))
    silent.pid = None if placed_s is None else 1
    assert fenced(silent, waits("1.2", 1)) == out


def test_deadlines_are_learned_from_the_slowest_worker() -> None:
    slow = {**MEASURED, "compute": 30.0}
    assert fenced(waits("1.1", 300), worker("1.2", "compute", 200), worker("1.3", "compute", 1, usual=slow)) == []
    assert fenced(waits("1.1", 300), worker("1.2", "compute", 241), worker("1.3", "compute", 1, usual=slow)) == ["1.2"]


@pytest.mark.parametrize("policy", [POLICY, HangPolicy.fixed(3.0)])
def test_what_the_program_says_takes_long_is_no_hang(policy: HangPolicy) -> None:
    assert fenced(waits("1.1", 1e6), worker("1.2", "long_phase", 1e6), policy=policy) == []
    stopped = worker("1.2", "long_phase", 700, silent=650)
    assert fenced(waits("1.1", 700), stopped, policy=policy) == ["1.2"], "it does not run at all"


@pytest.mark.parametrize("stage", ["setup", "first_batch", "evaluate", "checkpoint"])
def test_slow_stages_have_their_own_deadline(stage: str) -> None:
    assert fenced(waits("1.1", 700), worker("1.2", stage, 590)) == []
    assert fenced(waits("1.1", 700), worker("1.2", stage, 610)) == ["1.2"]


def test_what_was_not_measured_yet_may_be_slow() -> None:
    assert fenced(worker("1.1", "exchange", 300, usual={}), worker("1.2", "compute", 300, usual={})) == []


def test_what_the_user_says_is_the_deadline() -> None:
    fixed = HangPolicy.fixed(3.0)
    assert fenced(worker("1.2", "compute", 3.5, usual={"compute": 9.0}), policy=fixed) == ["1.2"]
    assert fenced(worker("1.2", "first_batch", 100), policy=fixed) == []
    patient = HangPolicy.fixed(3600.0)
    assert fenced(worker("1.2", "setup", 3599), policy=patient) == []
    assert fenced(worker("1.2", "setup", 3601), policy=patient) == ["1.2"]
    assert HangPolicy.fixed(0.5).silence_s == 3.0, "signs of life come once a second"
    for seconds in (0, 1, "2s", 2.9):
        with pytest.raises(SpecError, match=r"limits\.hang_timeout: must be at least 3s"):
            parse_spec({"name": "a", "entrypoint": "a.py", "limits": {"hang_timeout": seconds}})
    assert patient.silence_s == HangPolicy.silence_s, "a host that is lost is noticed no later"


def test_after_a_fence_the_next_one_at_that_stage_comes_later() -> None:
    lenience = Lenience()
    lenience.grow("compute")
    accused = [waits("1.1", 100), worker("1.2", "compute", 35)]
    assert fenced(*accused) == ["1.2"]
    assert fenced(*accused, lenience=lenience) == []
    for _ in range(10):
        lenience.grow("compute")
    assert lenience.of("compute") <= 16


def test_who_does_not_leave_a_revoked_generation_is_fenced() -> None:
    workers = [worker("1.1", "enter", 70), worker("1.2", "exchange", 70)]
    found = decide_hung(workers, POLICY, NOW, revoked=["1.2"], revoked_s=61)
    assert [one.incarnation for one in found] == ["1.2"]
    assert decide_hung(workers, POLICY, NOW, revoked=["1.2"], revoked_s=50) == []


@given(
    stages=st.lists(st.sampled_from(STAGES), min_size=1, max_size=6),
    seconds=st.lists(st.floats(0, 10), min_size=6, max_size=6),
    silent=st.lists(st.floats(0, 10), min_size=6, max_size=6),
    usual=st.dictionaries(st.sampled_from(STAGES), st.floats(0.0001, 100)),
)
def test_a_stop_or_a_stall_of_ten_seconds_never_costs_a_worker(
    stages: list[str], seconds: list[float], silent: list[float], usual: dict[str, float]
) -> None:
    workers = [
        worker(f"1.{n}", stage, seconds[n], silent=silent[n], usual=usual, heard_at=NOW - silent[n])
        for n, stage in enumerate(stages)
    ]
    assert fenced(*workers) == []
    assert not decide_stuck(workers, POLICY, minted_s=10.0)


def test_all_wait_for_each_other() -> None:
    stuck = [waits("1.1", 61), waits("1.2", 70)]
    assert decide_stuck(stuck, POLICY, minted_s=500)
    assert not decide_stuck(stuck, POLICY, minted_s=30), "of this generation they have not"
    assert not decide_stuck([waits("1.1", 61), worker("1.2", "compute", 70)], POLICY, minted_s=500)
    assert not decide_stuck([], POLICY, minted_s=500)


def test_who_waits_for_one_that_is_through_with_the_program_is_stuck() -> None:
    """An evaluation that not all workers go through."""
    done = worker("1.1", "done", 90_000)
    stuck = decide_stuck([done, waits("1.2", 61)], POLICY, minted_s=90_000)
    assert stuck is not None
    assert stuck.because == "w1.1 had ended the program, and w1.2 (exchange, step 12) waited for it"
    assert stuck.is_unequal
    assert not decide_stuck([done, waits("1.2", 30)], POLICY, minted_s=90_000)
    assert not decide_stuck([done, worker("1.2", "compute", 300)], POLICY, minted_s=90_000), "it waits for nobody"
    assert not decide_stuck([done, worker("1.2", "done", 90_000)], POLICY, minted_s=90_000), "all wait for a release"


def test_entering_and_forming_may_be_stuck_too() -> None:
    assert decide_stuck([worker("1.1", "enter", 61), waits("1.2", 61)], POLICY, minted_s=61)
    assert decide_stuck([worker("1.1", "standby", 900), worker("1.2", "standby", 900)], POLICY, minted_s=61)
    assert not decide_stuck([worker("1.1", "sync", 100), worker("1.2", "sync", 100)], POLICY, minted_s=100)


def test_a_slow_network_is_learned() -> None:
    slow = {**MEASURED, "exchange": 60.0}
    assert not decide_stuck([worker("1.1", "exchange", 300, usual=slow)], POLICY, minted_s=900)
    assert not decide_stuck([worker("1.1", "exchange", 300, usual={})], POLICY, minted_s=900), "not measured yet"
