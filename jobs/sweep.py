"""Which actors nobody wants any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.names import ActorName

SWEEP_AFTER_S = 30.0
"""An actor is swept that has been unknown for so long: a list may be old, and controllers leave by themselves."""


class Sweep:
    """Remembers since when actors belong to no wanted job."""

    def __init__(self) -> None:
        self._since: dict[ActorName, float] = {}

    def decide(self, wanted: Iterable[str], seen: Iterable[ActorName], now: float) -> list[ActorName]:
        """The actors to end, controllers first: they would start new workers.

        Args: wanted: ids of the jobs that should run, from a complete and current list. seen: all actors of ours.
        """
        jobs = set(wanted)
        unknown = [name for name in seen if name.job_id not in jobs]
        self._since = {name: self._since.get(name, now) for name in unknown}
        due = [name for name in unknown if now - self._since[name] >= SWEEP_AFTER_S]
        return sorted(due, key=lambda name: (bool(name.incarnation), str(name)))
