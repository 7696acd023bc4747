"""Deliveries as rows: written in the transaction of their event, claimed by one replica at a time, kept for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, exists, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from service.ids import new_id
from service.models import Delivery, Job, Webhook
from service.notify import WEBHOOKS, notify
from service.vault import Sealed
from service.webhooks.retries import DeliveryDecision
from service.webhooks.sending import Parcel, Sent
from service.webhooks.topics import TEST_KIND, message_of, named_for, topics_of

CLAIM_LIFETIME = timedelta(seconds=60)
"""Much longer than a try: a delivery whose replica died in it is taken up by another one after that."""
RETENTION = timedelta(days=7)
ROWS = 2_000
"""Forgotten in one transaction: nobody waits long for the database's writer."""
ARE_ON = "webhooks"
"""What a session knows of the settings: whether events are told at all."""
# Literals: a prepared statement does not find the partial indexes by a parameter.
IS_PENDING = Delivery.status == literal_column("'pending'")
_IS_TEST = Delivery.kind == literal_column(f"'{TEST_KIND}'")


@dataclass(frozen=True)
class Claim:
    """A delivery that this replica is to try now."""

    parcel: Parcel
    secret: Sealed
    purpose: str
    kind: str
    tries: int
    """With this one; also the token of the claim: who comes back after its lifetime finds another number."""


async def put_events(session: AsyncSession, job: Job, events: Sequence[Mapping[str, Any]], *, now: datetime) -> None:
    """Put into the outbox what the project's webhooks and the job ask for, in the transaction of the events."""
    if not session.info.get(ARE_ON):
        return
    told = [(event, topics) for event in events if (topics := topics_of(event["kind"], event["data"]))]
    if not told:
        return
    found = select(Webhook.id, Webhook.name, Webhook.events).where(Webhook.project == job.project).order_by(Webhook.id)
    # Locked: one that is deleted meanwhile would take the job's events down with its deliveries.
    webhooks = (await session.execute(found.with_for_update(read=True, key_share=True))).all()
    shown = {"id": job.id, "name": job.name, "project": job.project}
    notifications = job.spec.get("notifications") or ()
    rows: list[dict[str, Any]] = []
    for event, topics in told:
        named = named_for(notifications, event["kind"], event["data"])
        wanting = [one for one, name, wanted in webhooks if topics & set(wanted) or name in named]
        body = message_of(shown, event) if wanting else ""
        rows += (delivery_row(webhook_id, job.id, event["kind"], body, now) for webhook_id in wanting)
    if rows:
        await session.execute(insert(Delivery), rows)
        notify(session, WEBHOOKS)


def delivery_row(webhook_id: str, job_id: str | None, kind: str, body: str, now: datetime) -> dict[str, Any]:
    """A delivery that is due at once."""
    return {
        "id": new_id("dlv", now),
        "webhook_id": webhook_id,
        "job_id": job_id,
        "kind": kind,
        "body": body,
        "status": "pending",
        "tries": 0,
        "next_at": now,
        "created_at": now,
        "error": "",
    }


async def due_webhooks(session: AsyncSession, now: datetime) -> dict[str, str]:
    """Webhooks with something to deliver now, and their projects: one look into an index for each, however much
    waits.
    """
    due = exists().where(Delivery.webhook_id == Webhook.id, IS_PENDING, Delivery.next_at <= now)
    found = await session.execute(select(Webhook.id, Webhook.project).where(due).order_by(Webhook.id))
    return {row.id: row.project for row in found}


async def claim(session: AsyncSession, webhook_id: str, now: datetime) -> Claim | None:
    """What is due for longest at a webhook, of what no other replica works on; None: nothing is.

    A test goes before everything else: somebody waits for it, most of all where much else does not arrive.
    """
    due = (
        select(Delivery)
        .where(Delivery.webhook_id == webhook_id, IS_PENDING, Delivery.next_at <= now)
        .order_by(Delivery.next_at, Delivery.id)
        .limit(1)
        # SQLite has no such thing, and one writer.
        .with_for_update(skip_locked=True)
    )
    delivery = (await session.scalars(due.where(_IS_TEST))).one_or_none()
    delivery = delivery or (await session.scalars(due)).one_or_none()
    if delivery is None:
        return None
    webhook = await session.get_one(Webhook, webhook_id)
    delivery.tries += 1
    delivery.next_at = now + CLAIM_LIFETIME
    return Claim(
        Parcel(delivery.id, webhook.project, webhook.url, delivery.body),
        Sealed(webhook.key_id, webhook.sealed),
        purpose_of(webhook.id),
        delivery.kind,
        delivery.tries,
    )


async def settle(session: AsyncSession, claimed: Claim, sent: Sent, decision: DeliveryDecision, now: datetime) -> None:
    """Write what became of a claim; nothing where it ran out and another replica took it up."""
    values = {
        "status": decision.status,
        "next_at": None if decision.wait is None else now + decision.wait,
        "finished_at": None if decision.status == "pending" else now,
        "last_status": sent.status,
        "error": decision.because,
    }
    ours = (Delivery.id == claimed.parcel.message_id, Delivery.tries == claimed.tries, Delivery.status == "pending")
    await session.execute(update(Delivery).where(*ours).values(values).execution_options(synchronize_session=False))
    notify(session, WEBHOOKS)


async def forget_old(session: AsyncSession, now: datetime) -> bool:
    """Remove some of the deliveries that nobody looks up any more, the oldest first; gives whether more may be left."""
    old = select(Delivery.id).where(Delivery.created_at < now - RETENTION).order_by(Delivery.created_at).limit(ROWS)
    gone = delete(Delivery).where(Delivery.id.in_(old)).execution_options(synchronize_session=False)
    return (await session.execute(gone)).rowcount >= ROWS  # type: ignore[attr-defined, no-any-return]


def purpose_of(webhook_id: str) -> str:
    """What a sealed signing secret is bound to."""
    return f"webhook:{webhook_id}"
