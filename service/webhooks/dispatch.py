"""The loop that delivers: for each webhook one delivery after the other, several webhooks at once.

An endpoint that is slow or dead holds up its own deliveries only. What is tried is claimed in a transaction before, and
what came of it is written in one after: none is open while the network is waited for.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError

from service.context import Context
from service.counters import DELIVERIES
from service.notify import WEBHOOKS
from service.patience import DatabaseSilent
from service.vault import VaultShut
from service.vigil import compare_clocks
from service.webhooks.outbox import Claim, claim, due_webhooks, forget_old, settle
from service.webhooks.retries import decide_delivery
from service.webhooks.sending import Sender, Sent
from service.webhooks.turns import MAX_WEBHOOKS, LastTry, choose_webhooks

MAX_ROW = 50
"""After so many deliveries in a row a webhook makes room for another one."""
KNOWN = timedelta(days=1)
"""For so long it remembers what came of the last try; the longest wait between two is a quarter of it."""
INTERVAL_S = 1.0
"""How often it looks when nothing wakes it."""
MIN_REST_S = 0.05
HOUSEKEEPING_S = 600.0

log = structlog.get_logger(__name__)


class Dispatcher:
    """Delivers what is due."""

    def __init__(self, context: Context, sender: Sender) -> None:
        self._context = context
        self._sender = sender
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._last_tries: dict[str, LastTry] = {}
        self._cleaned_at: float | None = None

    async def run(self) -> None:
        """Until cancelled. An error costs one round, not the loop."""
        try:
            with self._context.hub.subscribe(WEBHOOKS) as subscription:
                while not self._context.hub.is_closed:
                    try:
                        if await compare_clocks(self._context) is None:  # else others claim by another clock
                            # First: what waited for weeks while webhooks were off is no news.
                            await self._clean_up()
                            await self._begin_what_is_due()
                    except (DBAPIError, OSError, DatabaseSilent) as error:
                        log.warning("webhook_round_failed", error=repr(error)[:500])
                    except Exception:
                        log.exception("webhook_round_failed")
                    await subscription.wait(INTERVAL_S)
                    # A storm of events must not become one of looks.
                    await asyncio.sleep(MIN_REST_S)
        finally:
            await self._end()

    async def run_once(self) -> None:
        """Deliver everything that is due now."""
        await self._begin_what_is_due()
        await asyncio.gather(*self._tasks.values())

    async def _begin_what_is_due(self) -> None:
        if len(self._tasks) >= MAX_WEBHOOKS:
            return
        now = self._context.clock()
        self._last_tries = {one: last for one, last in self._last_tries.items() if last.at > now - KNOWN}
        async with self._context.database.read() as session:
            found = await due_webhooks(session, now)
        due = [webhook_id for webhook_id, project in found.items() if self._sender.has_room(project)]
        for webhook_id in choose_webhooks(due, self._tasks.keys(), self._last_tries, now):
            self._tasks[webhook_id] = asyncio.create_task(self._deliver_to(webhook_id))

    async def _deliver_to(self, webhook_id: str) -> None:
        try:
            await self._deliver_row(webhook_id)
        except (DBAPIError, OSError, DatabaseSilent) as error:
            # What was sent and could not be written is sent again when its claim has run out.
            log.warning("webhook_delivery_not_stored", webhook=webhook_id, error=repr(error)[:500])
        except Exception:
            log.exception("webhook_delivery_failed", webhook=webhook_id)
        finally:
            self._tasks.pop(webhook_id, None)

    async def _deliver_row(self, webhook_id: str) -> None:
        for _ in range(MAX_ROW):
            if self._context.heartbeat.out_of_step is not None:
                return
            async with self._context.database.write() as session:
                claimed = await claim(session, webhook_id, self._context.clock())
            if claimed is None:
                return
            is_delivered = await self._try(claimed)
            self._last_tries[webhook_id] = LastTry(self._context.clock(), has_failed=not is_delivered)
            if not is_delivered:
                return

    async def _try(self, claimed: Claim) -> bool:
        """Whether it was delivered."""
        sent = await self._send(claimed)
        decision = decide_delivery(sent, claimed.kind, claimed.tries, random.random())
        async with self._context.database.write() as session:
            await settle(session, claimed, sent, decision, self._context.clock())
        DELIVERIES.labels("delivered" if not sent.error else decision.status).inc()
        return not sent.error

    async def _send(self, claimed: Claim) -> Sent:
        try:
            secret = self._context.vault.open(claimed.secret, claimed.purpose)
        except VaultShut as error:
            return Sent(None, f"It was not sent, for it cannot be signed. {error.message}")
        return await self._sender.send(claimed.parcel, secret, self._context.clock())

    async def _clean_up(self) -> None:
        if self._cleaned_at is not None and time.monotonic() - self._cleaned_at < HOUSEKEEPING_S:
            return
        if self._context.heartbeat.why_unsettled(self._context.clock()):
            return
        while await self._forget_some():
            pass
        self._cleaned_at = time.monotonic()

    async def _forget_some(self) -> bool:
        async with self._context.database.write() as session:
            return await forget_old(session, self._context.clock())

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
