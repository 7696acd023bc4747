from __future__ import annotations

import pytest
import torch

from rubato.engine.coordinator.hangs import Hung
from rubato.engine.coordinator.verdicts import CRASHES_AT_ONE_STEP, HANGS_AT_ONE_STEP, Verdicts
from rubato.errors import NonFiniteGradient
from rubato.wire.reasons import Reason
from rubato.wire.worker import Exited, UserFailed


def refused_by_torch() -> str:
    """What torch says of an operation that is not deterministic."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.use_deterministic_algorithms(before)
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
    failure = Verdicts().on_user_error(UserFailed("1.1", "setup", error, "Traceback", None, None), has_trained=False)
    assert failure is not None
    assert failure.reason == reason


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
    failure = Verdicts().on_user_error(UserFailed("1.1", "step", error, "Traceback", 7, None), has_trained=True)
    assert failure is not None
    assert failure.reason == Reason.NON_FINITE
    assert failure.step == 7
