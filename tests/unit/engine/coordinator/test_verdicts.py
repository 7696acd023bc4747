from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rubato.engine.coordinator.hangs import Hung
from rubato.engine.coordinator.verdicts import CRASHES_AT_ONE_STEP, HANGS_AT_ONE_STEP, Verdicts
from rubato.errors import NonFiniteGradient
from rubato.wire.cluster import Failure
from rubato.wire.reasons import Reason
from rubato.wire.worker import Exited, UserFailed


def refused_by_torch() -> str:
    """What torch says of an operation that is not deterministic."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")  # unlike `use_deterministic_algorithms` it loads no compiler
    try:
        torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.set_deterministic_debug_mode(before)
    raise AssertionError("torch has become deterministic here; take another operation")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("MemoryError: ", Reason.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", Reason.OUT_OF_MEMORY),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 4503599627370496 bytes.",
            Reason.OUT_OF_MEMORY,
        ),
        ("ValueError: MemoryError is not what this is", Reason.USER_CODE_ERROR),
        ("KeyError: 'memory'", Reason.USER_CODE_ERROR),
        (refused_by_torch(), Reason.NOT_DETERMINISTIC),
    ],
)
def test_what_is_no_bug_of_the_program_is_told_from_one(error: str, reason: Reason) -> None:
    failure = verdict(UserFailed("1.1", "setup", error, "Traceback", None, None), has_trained=False)
    assert failure is not None
    assert failure.reason == reason


def verdict(
    error: UserFailed,
    verdicts: Verdicts | None = None,
    generation: int = 1,
    *,
    no_retry: tuple[int, ...] = (),
    has_trained: bool = True,
) -> Failure | None:
    return (verdicts or Verdicts()).on_user_error(error, generation, no_retry=no_retry, has_trained=has_trained)


def test_what_raises_on_two_workers_is_the_programs_fault() -> None:
    verdicts = Verdicts()
    first, second = (UserFailed(f"1.{one}", "step", "KeyError: 'x'", "Traceback", 7, None) for one in (1, 2))
    assert verdict(first, verdicts) is None
    assert verdict(second, verdicts) is not None


def test_what_the_engine_has_found_wrong_is_not_tried_again() -> None:
    """Other workers may not show it: where one alone has evaluated, its successors have another name."""
    found = UserFailed("1.1", "step", "NotOnAllWorkers: run.evaluate was called by rank 0", "Traceback", 7, None)
    assert verdict(found) is not None
    other = UserFailed("1.1", "setup", "ModelError: the stream has no shards; check the path", "Traceback", None, None)
    assert verdict(other) is None, "a joiner on a node without that mount"


@pytest.mark.parametrize("error", ["OSError: [Errno 5] Input/output error", "TimeoutError: [Errno 110] timed out"])
def test_a_file_system_that_fails_all_workers_at_once_fails_once(error: str) -> None:
    verdicts = Verdicts()
    all_of_them = [UserFailed(f"1.{member}", "step", error, "Traceback", 7, None) for member in range(4)]
    assert [verdict(one, verdicts) for one in all_of_them] == [None] * 4
    failure = verdict(replace(all_of_them[0], incarnation="1.9"), verdicts, generation=2)
    assert failure is not None
    assert error in failure.message


def test_a_wrong_path_is_the_programs_fault() -> None:
    verdicts = Verdicts()
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'digits'"
    verdict(UserFailed("1.1", "step", error, "Traceback", 7, None), verdicts)
    assert verdict(UserFailed("1.2", "step", error, "Traceback", 7, None), verdicts) is not None


@pytest.mark.parametrize(
    ("exited", "code"),
    [(Exited("1.1", 3, None), 3), (Exited("1.1", None, "SIGSEGV"), -11), (Exited("1.1", None, "SIGKILL"), -9)],
)
def test_an_end_that_is_not_to_be_tried_again_fails_the_job(exited: Exited, code: int) -> None:
    told: dict[str, Any] = {"step": 7, "generation": 1, "has_trained": True}
    assert Verdicts().on_crash(exited, no_retry=(code + 1,), **told) is None
    failure = Verdicts().on_crash(exited, no_retry=(code,), **told)
    assert failure is not None
    assert "no_retry_on_exit_codes" in failure.message


def test_nor_is_what_the_program_gave_to_exit() -> None:
    left = UserFailed("1.1", "step", "the program called exit (3)", "Traceback", 7, None, exit_code=3)
    assert verdict(left, no_retry=(4,)) is None
    assert verdict(left, no_retry=(3,)) is not None
    usual = UserFailed("1.1", "step", "KeyError: 'x'", "Traceback", 7, None)
    assert verdict(usual, no_retry=(1,)) is None, "its process ends with 1, but it was not asked to"


def test_members_that_hang_together_hang_once() -> None:
    verdicts = Verdicts()
    for generation in range(1, HANGS_AT_ONE_STEP + 1):
        for member in range(4):
            hung = Hung(f"1.{member}", "made no progress", stage="compute", step=7)
            failure = verdicts.on_hang(hung, generation)
            assert (failure is not None) == (generation == HANGS_AT_ONE_STEP)
    assert failure is not None
    assert failure.reason == Reason.HANG
    assert f"hung {HANGS_AT_ONE_STEP} times at step 7" in failure.message


def test_members_that_crash_together_crash_once() -> None:
    verdicts = Verdicts()
    for generation in range(1, CRASHES_AT_ONE_STEP + 1):
        for member in range(4):
            exited = Exited(f"1.{member}", None, "SIGBUS")
            failure = verdicts.on_crash(exited, 7, generation, no_retry=(), has_trained=True)
            assert (failure is not None) == (generation == CRASHES_AT_ONE_STEP)
    assert failure is not None
    assert failure.reason == Reason.USER_CODE_ERROR
    assert f"died {CRASHES_AT_ONE_STEP} times at step 7" in failure.message


def test_a_gradient_that_is_not_finite_is_not_tried_again() -> None:
    error = f"{NonFiniteGradient.__name__}: the gradient of step 7 was not finite"
    failure = verdict(UserFailed("1.1", "step", error, "Traceback", 7, None))
    assert failure is not None
    assert failure.reason == Reason.NON_FINITE
    assert failure.step == 7
