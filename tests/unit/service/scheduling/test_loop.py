from __future__ import annotations

import pytest

from service.scheduling.loop import decide_absence


@pytest.mark.parametrize(
    ("wall_s", "steady_s", "because"),
    [
        pytest.param(1.0, 1.0, None, id="a round"),
        pytest.param(4.0, 4.2, None, id="a slow round"),
        pytest.param(3601.0, 1.0, "the clock jumped by 3600.0 s", id="set forward, or the machine slept"),
        pytest.param(-3599.0, 1.0, "the clock jumped by -3600.0 s", id="set back"),
        pytest.param(91.0, 91.0, "the service stood still for 90.0 s", id="SIGSTOP"),
    ],
)
def test_silence_is_not_held_against_controllers_when_it_was_ours(
    wall_s: float, steady_s: float, because: str | None
) -> None:
    assert decide_absence(wall_s, steady_s, interval_s=1.0) == because
