"""Which webhooks are delivered to next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_WEBHOOKS = 8
"""So many are delivered to at once."""
MAX_FAILING = 4
"""So many of them may be such whose last try failed: endpoints that hang do not take the turns of the others."""
REST = timedelta(seconds=5)
"""For so long an endpoint is left alone after a try that failed, whatever else waits for it."""


@dataclass(frozen=True)
class LastTry:
    """What this replica knows of a webhook."""

    at: datetime
    has_failed: bool


def choose_webhooks(
    due: Collection[str], running: Set[str], last_tries: Mapping[str, LastTry], now: datetime
) -> list[str]:
    """Those that are begun now: who was tried longest ago comes first, and who was never tried before all others.

    Args:
        due: webhooks with something to deliver.
        running: those that are delivered to.
        last_tries: of those that were tried.
        now: aware and UTC.
    """

    def has_failed(webhook_id: str) -> bool:
        return webhook_id in last_tries and last_tries[webhook_id].has_failed

    def is_ready(webhook_id: str) -> bool:
        rests = has_failed(webhook_id) and now < last_tries[webhook_id].at + REST
        return webhook_id not in running and not rests

    ready = list(filter(is_ready, due))
    tried = sorted((one for one in ready if one in last_tries), key=lambda one: last_tries[one].at)
    room = MAX_WEBHOOKS - len(running)
    room_for_failing = MAX_FAILING - sum(map(has_failed, running))
    chosen: list[str] = []
    for webhook_id in [*(one for one in ready if one not in last_tries), *tried]:
        if len(chosen) >= room:
            break
        if has_failed(webhook_id):
            if room_for_failing <= 0:
                continue
            room_for_failing -= 1
        chosen.append(webhook_id)
    return chosen
