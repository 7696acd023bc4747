"""What people do in training programs, under a kill, a join and a scaling: the bits of one undisturbed worker."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
from invariants import Undisturbed, check, undisturbed, values_by_step
from local_job import LocalJob

pytestmark = pytest.mark.timeout(240)

STEPS = 40
COMPILED_WITHIN_S = 400.0
"""Where nothing is compiled yet, each of three workers runs the C++ compiler, and others use the machine."""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 64, "num_microbatches": 6},
    "workers": {"initial": 3, "min": 1, "max": 3},
}
HABITS = (
    "bf16 autocast",
    "fp16 autocast with GradScaler",
    "clipping",
    "clipping in the loop",
    "OneCycleLR",
    "MultiStepLR",
    "SequentialLR",
    "ReduceLROnPlateau",
    "EMA",
    "epochs",
    "gradients of the step before",
    "several optimizers",
    "frozen parameters",
    "tied weights and unused parameters",
    "sparse gradients",
    "gradient checkpointing",
    "buffers",
    "weights",
)


def spec(habit: str, **more: Any) -> dict[str, Any]:
    config = {"steps": STEPS, "habit": habit, **more.pop("config", {})}
    return {**SPEC, "config": config, **more}


@functools.cache
def expected(habit: str) -> Undisturbed:
    return undisturbed("habits", **spec(habit))


def disturb(run: LocalJob) -> None:
    """Three train, one of them is killed; its replacement joins; one alone ends it."""
    run.wait_step(3)
    run.kill_and_wait([1])
    run.wait_step(run.step + 2)
    run.scale(1)
    run.wait_workers(1)


def check_disturbed(run: LocalJob, undisturbed: Undisturbed, habit: str = "any habit") -> None:
    check(run, undisturbed, fault=f"a kill, a join and a scaling, with {habit}")
    formed = [event["data"] for event in run.formed()]
    assert [one["cause"] for one in formed] == ["start", "recovery", "replace", "scale_down"]
    assert [one["workers"] for one in formed] == [3, 2, 3, 1]


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_has_the_bits_of_one_undisturbed_worker(tmp_path: Path, habit: str) -> None:
    with LocalJob(tmp_path, "habits", **spec(habit)) as run:
        disturb(run)
        check_disturbed(run, expected(habit))
    check_effect(habit, {step: dict(values) for step, values in expected(habit).rows.items()})


def check_effect(habit: str, rows: dict[int, dict[str, float]]) -> None:
    """The habit did what it is for; otherwise its bits would prove nothing."""
    of = {name: [values[name] for values in rows.values() if name in values] for name in rows[STEPS]}
    match habit:
        case "bf16 autocast":
            assert rows[1]["bits"] == 16
        case "fp16 autocast with GradScaler":
            assert 3 < sum(of["skipped"]) < 30
            assert max(of["scale"][20:]) > min(of["scale"]), "the scale never grew again"
        case "clipping":
            assert min(of["norm"]) > 0.05, "nothing was clipped"
        case "OneCycleLR" | "MultiStepLR" | "SequentialLR" | "ReduceLROnPlateau":
            assert len(set(of["lr"])) > 3, of["lr"]
        case "EMA":
            assert of["n"] == [float(step) for step in range(1, STEPS + 1)]
            assert len(set(of["average"])) == STEPS
        case "epochs":
            ends = [step for step, values in rows.items() if "passes" in values]
            assert ends == [4 * number for number in range(1, 11)]
            assert of["passes"] == [float(number) for number in range(1, 11)]
            assert of["lr"] == [pytest.approx(0.1 * 0.9**number) for number in range(1, 11)]
            assert len(set(of["quality"])) == 10
        case "frozen parameters":
            assert of["head"] == [1.0] + [0.0] * 10 + [1.0] * 29
            assert of["norm"] == [1.0] * 11 + [0.0] * 29
        case "tied weights and unused parameters" | "sparse gradients":
            assert set(of["never"]) == {0.0}
            assert sum(of["sometimes"]) > 0.0
        case "buffers":
            assert all(value < 0 for value in of["lowest"])
            assert 0.0 < of["total"][-1] - 1 != round(of["total"][-1] - 1), "double precision was lost"
            assert of["seen"] == [float(step) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "habit",
    ["fp16 autocast with GradScaler", "buffers", "non-finite gradient", "tied weights and unused parameters"],
)
def test_what_all_workers_decide_together_has_the_same_bits_for_every_count(
    tmp_path: Path, habit: str, workers: int
) -> None:
    """Undisturbed, from the first step to the last: also those that are skipped, or hit by what is not finite."""
    job = spec(habit)
    with LocalJob(tmp_path, "habits", **{**job, "workers": {"initial": workers, "min": workers, "max": 4}}) as run:
        check(run, expected(habit))
    assert {row["workers"] for row in run.rows()} == {workers}
    check_effect(habit, values_by_step(run))
    assert len(run.events("non_finite")) >= (habit == "non-finite gradient")


@pytest.mark.parametrize("policy", ["deliver", "skip"])
def test_a_gradient_that_is_not_finite(tmp_path: Path, policy: str) -> None:
    job = spec("non-finite gradient", on_non_finite=policy)
    with LocalJob(tmp_path, "habits", **job) as run:
        disturb(run)
        check_disturbed(run, undisturbed("habits", **job))
    assert [event["step"] for event in run.events("non_finite")] == [7]
    hit = values_by_step(run)[8]
    assert (hit["nothing"], hit["finite"]) == ((1.0, 1.0) if policy == "skip" else (0.0, 0.0))


def test_a_scaler_does_the_same_where_such_steps_are_skipped(tmp_path: Path) -> None:
    habit = "fp16 autocast with GradScaler"
    with LocalJob(tmp_path, "habits", **spec(habit, on_non_finite="skip")) as run:
        disturb(run)
        check_disturbed(run, expected(habit))
    assert run.events("non_finite")


def test_a_gradient_that_is_not_finite_fails_the_job_where_that_is_asked(tmp_path: Path) -> None:
    with LocalJob(tmp_path, "habits", **spec("non-finite gradient", on_non_finite="fail")) as run:
        run.hold.unlink()
        run.wait_for_end()
    assert run.outcome is not None
    assert run.outcome.failure is not None
    assert run.outcome.failure.step == 7
    assert "not finite" in run.outcome.failure.message


@pytest.mark.timeout(600)
def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With inductor where there is a C++ compiler; elsewhere with the backend that traces only.

    Nothing is compiled yet, as on a new node. A change of workers waits for the compiler, too: microbatches of this job
    have one of two sizes, and some worker meets the other one for the first time.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    backend = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"
    print(f"torch.compile(backend={backend!r})")
    job = spec("torch.compile", config={"backend": backend})
    with LocalJob(tmp_path, "habits", patience_s=COMPILED_WITHIN_S, **job) as run:
        disturb(run)
        check_disturbed(run, undisturbed("habits", **job), "torch.compile")
