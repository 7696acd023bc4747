from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ceilings
import pytest
from ceilings import LEAST_S, UNMEASURED_S, Commit, WarmUp, ceiling_s, check_pauses, check_warm_ups
from invariants import warm_ups

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


def commits(*seconds: float, generation: int = 1) -> list[Commit]:
    return [Commit(at(one), generation) for one in seconds]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"test": "tests/chaos/test_a.py::one[x]", "fault": "kill", "pauses": [0.04, 0.24]},
        {"test": "test_a.py", "fault": "slow kill", "pauses": [0.1], "standstill": 2.0},
        {"test": "test_a.py", "fault": "stop for ever", "pauses": [9.0]},
        {"test": "test_a.py", "fault": "none", "pauses": []},
    ]
    (tmp_path / "seed-1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(ceilings, "MEASURED", tmp_path)
    monkeypatch.setattr(ceilings, "RECORD", None)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """What was measured is read for this test, and again for whoever comes next."""
    ceilings._worst.cache_clear()
    yield
    ceilings._worst.cache_clear()


@pytest.mark.parametrize(
    ("fault", "limit_s"),
    [("kill", LEAST_S), ("slow kill", 10.0), ("stop for ever", 29.0), ("none", LEAST_S), ("of tomorrow", UNMEASURED_S)],
)
def test_a_ceiling_follows_from_the_worst_that_was_measured(measured: None, fault: str, limit_s: float) -> None:
    assert ceiling_s("test_a.py", fault) == limit_s
    check_pauses("test_a.py", fault, [0.0, limit_s])
    with pytest.raises(AssertionError, match=fault):
        check_pauses("test_a.py", fault, [0.0, limit_s + 0.1])


def test_the_record_that_is_being_written_does_not_count(
    measured: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "RECORD", str(tmp_path / "seed-1.jsonl"))
    assert ceiling_s("test_a.py", "kill") == UNMEASURED_S


def test_every_kill_of_the_published_table_is_recovered_from_within_seconds() -> None:
    stages = [fault for test, fault in ceilings._worst() if test == "test_faults.py" and fault.startswith("SIGKILL in")]
    assert len(stages) > 10
    assert {ceiling_s("test_faults.py", fault) for fault in stages} == {LEAST_S}


ONE = WarmUp("w1.2", begun=at(4.5), ended=at(9.5))


@pytest.mark.parametrize(
    "during",
    [
        (5, 6, 7, 8, 9, 10),
        (6.5, 8.5, 10.5),  # the newcomer takes its share of the cores
        (5, 6, 7, 8, 9, 30),  # what its join costs is a pause, which has a ceiling of its own
        (5, 6),  # then others were lost
    ],
)
def test_others_may_be_a_little_slower_while_one_warms_up(during: tuple[float, ...]) -> None:
    check_warm_ups(commits(0, 1, 2, 3, 4, *during), [ONE])


@pytest.mark.parametrize("during", [(15.0,), (9.4, 19.0), (9.4, 14.0, 19.0, 24.0, 29.0)])
def test_they_may_not_wait_for_it(during: tuple[float, ...]) -> None:
    with pytest.raises(AssertionError, match=r"while w1\.2 warmed up"):
        check_warm_ups(commits(0, 1, 2, 3, 4, *during), [WarmUp("w1.2", at(4.5), at(during[-1] - 0.1))])


def test_what_another_generation_took_says_nothing() -> None:
    check_warm_ups([*commits(0, 1, 2, 3, 4), *commits(30, 31, generation=2)], [ONE])
    check_warm_ups([*commits(3, 4), *commits(30)], [ONE])  # what is usual is not known
    check_warm_ups(commits(20, 21), [ONE])  # the start: nobody trained yet


def test_those_with_whom_training_begins_warm_up_beside_nobody() -> None:
    """Also where all before them were lost: what was committed then says nothing, in whichever generation."""
    told: list[tuple[str, str, dict[str, Any]]] = []
    for number, worker in enumerate(("w2.1", "w2.2")):
        told.append(("worker.started", at(10.0 * number).isoformat(), {"worker_id": worker}))
        told.append(("worker.ready", at(10.0 * number + 5).isoformat(), {"worker_id": worker}))
    told.append(("generation.formed", at(7).isoformat(), {"cause": "start", "members": [{"worker_id": "w2.1"}]}))
    told.append(("generation.formed", at(17).isoformat(), {"cause": "scale_up", "members": [{"worker_id": "w2.2"}]}))
    assert warm_ups(told) == [WarmUp("w2.2", at(10), at(15))]
