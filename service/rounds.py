"""The scheduling loop with its rounds counted, and the heartbeat by which others see that it runs."""

from __future__ import annotations

import time
from typing import Any

from service.context import Context
from service.counters import ROUNDS
from service.scheduling.loop import SchedulingLoop
from service.states import IllegalTransition


class WatchedLoop(SchedulingLoop):
    """Each round beats the context's heartbeat, also one that failed, and says so: the loop itself then lives."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._heartbeat = context.heartbeat
        self._database = context.database

    async def run_once(self, **options: Any) -> None:
        """One round, timed."""
        began = time.perf_counter()
        fault: str | None = "CancelledError"
        try:
            self._database.check_file()  # also where nobody writes
            await super().run_once(**options)
            fault = None
        except IllegalTransition:
            fault = None  # another replica was faster, and has done it
            raise
        except Exception as error:
            fault = type(error).__name__
            raise
        finally:
            ROUNDS.labels("failed" if fault else "ok").observe(time.perf_counter() - began)
            self._heartbeat.beat(fault)
