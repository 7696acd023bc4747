from __future__ import annotations

import pytest

from rubato.engine.coordinator.verdicts import Verdicts
from rubato.wire.reasons import Reason
from rubato.wire.worker import UserFailed


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
    ],
)
def test_an_exception_for_want_of_memory_is_told_from_a_bug(error: str, reason: Reason) -> None:
    failure = Verdicts().on_user_error(UserFailed("1.1", "setup", error, "Traceback", None, None), has_trained=False)
    assert failure is not None
    assert failure.reason == reason
