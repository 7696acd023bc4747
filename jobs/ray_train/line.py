"""The line from a process of Ray Train to the controller of the job: in order, each message once, without waiting."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from jobs.names import NAMESPACE, controller_name

PULSE_S = 5.0
"""Where there is nothing to say, so often is asked whether this run still counts."""
ANSWER_S = 10.0
RETRY_S = 0.5
SILENCE_S = 60.0
"""Without an answer for so long nobody leads this run any more."""


class Line:
    """One sender. A thread does the sending; a controller that is away is waited for.

    Args:
        run: the number of the driver within the attempt.
        on_stale: this run does not count any more; called once, by the thread.
    """

    def __init__(self, job_id: str, attempt: int, run: int, on_stale: Callable[[], None]) -> None:
        self._job_id, self._attempt, self._run = job_id, attempt, run
        self._on_stale = on_stale
        self._source = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._waiting: list[Any] = []
        self._seq = 0
        """Of the first that waits."""
        self._is_closed = False
        self._answered_at = time.monotonic()
        self._thread = threading.Thread(target=self._send_all, name="line", daemon=True)
        self._thread.start()

    def put(self, message: Any) -> None:
        """Hand in a message."""
        with self._changed:
            self._waiting.append(message)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Send what is left."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, PULSE_S)
                batch = tuple(self._waiting)
                if self._is_closed and not batch:
                    return
            counts = self._send(batch)
            if counts:
                with self._changed:
                    self._answered_at = time.monotonic()
                    del self._waiting[: len(batch)]
                    self._seq += len(batch)
            elif counts is None and time.monotonic() - self._answered_at < SILENCE_S:
                time.sleep(RETRY_S)
            else:
                self._on_stale()
                return

    def _send(self, batch: tuple[Any, ...]) -> bool | None:
        """Whether this run counts; None: no answer."""
        try:
            controller: Any = ray.get_actor(controller_name(self._job_id), namespace=NAMESPACE)
            reply = controller.hear.remote(self._attempt, self._run, self._source, self._seq, batch)
            return bool(ray.get(reply, timeout=ANSWER_S))
        except ValueError:
            return False  # nobody leads the job any more
        except (RayError, GetTimeoutError):
            return None
