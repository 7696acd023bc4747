from __future__ import annotations

import threading
import time

import pytest

from benchmarks.programs import phases


@pytest.mark.parametrize(("name", "module", "attribute"), phases.HOOKS)
def test_every_hook_names_a_function_of_the_engine(name: str, module: str, attribute: str) -> None:
    _, function = phases.find(module, attribute)
    assert callable(function)
    assert name in phases.ORDER


def test_a_moment_counts_to_the_innermost_phase_and_all_of_them_add_up() -> None:
    began = time.perf_counter_ns()
    clock = phases.PhaseClock()
    with clock.phase("send sums"):
        with clock.phase("wire"):
            time.sleep(0.02)
        time.sleep(0.01)
    with clock.phase("optimizer"):
        pass
    clock.lap()
    whole = time.perf_counter_ns() - began
    (lap,) = clock.laps
    assert set(lap) == {"rest", "send sums", "wire", "optimizer"}
    assert lap["wire"][0] >= 0.02e9
    assert lap["send sums"][0] >= 0.01e9
    assert sum(wall for wall, _ in lap.values()) <= whole


def test_other_threads_are_not_watched() -> None:
    clock = phases.PhaseClock()

    def other() -> None:
        with clock.phase("wire"):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    clock.lap()
    assert set(clock.laps[0]) == {"rest"}
