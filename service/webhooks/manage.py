"""Webhooks of a project, as people make, list, test and remove them."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding, SpecError
from rubato.wire.spec import JobSpec
from service.access import Principal
from service.clock import optional_rfc3339, to_rfc3339
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec, not_found
from service.ids import is_id, new_id
from service.models import Delivery, Project, Webhook
from service.notify import WEBHOOKS, notify
from service.pages import bad_cursor, cut, read_key
from service.people import audit, check_name, find_project, is_storable, storable
from service.webhooks.addresses import check_url
from service.webhooks.outbox import ARE_ON, delivery_row, purpose_of
from service.webhooks.topics import TEST_KIND, Topic, trial_message

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
MAX_WEBHOOKS = 20
"""Of a project: each event is written once for each."""
ARE_OFF = "webhooks are off; the service's operator turns them on with RUBATO_WEBHOOKS=true"


async def create(
    context: Context, project: str, name: str, url: str, topics: Sequence[Topic], caller: Principal
) -> dict[str, Any]:
    """A new webhook; the reply is the only place where its signing secret ever stands.

    Raises:
        ServiceError: conflict (webhooks are off, or too many), invalid_request, name_taken, not_found (the project),
            not_ready (nothing can be sealed).
    """
    check_name(name)
    _check_on(context)
    check_url(url, context.settings.webhook_networks)
    now = context.clock()
    webhook_id = new_id("whk", now)
    secret = SECRET_PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()
    sealed = context.vault.seal(secret, purpose_of(webhook_id))
    wanted = sorted(set(topics) or set(Topic) - {Topic.ASKED})
    async with context.database.write() as session:
        # Locked: two that are made at once must not have one name, nor be one too many.
        if not is_storable(project) or await session.get(Project, project, with_for_update=True) is None:
            raise not_found("project", project[:80])
        names = (await session.scalars(select(Webhook.name).where(Webhook.project == project))).all()
        if name in names:
            raise ServiceError(ErrorKind.NAME_TAKEN, f"There is a webhook {name!r} in {project!r} already.")
        if len(names) >= MAX_WEBHOOKS:
            raise ServiceError(ErrorKind.CONFLICT, f"A project may have {MAX_WEBHOOKS} webhooks; remove one first.")
        webhook = Webhook(
            id=webhook_id,
            project=project,
            name=name,
            url=url,
            events=[str(topic) for topic in wanted],
            key_id=sealed.key_id,
            sealed=sealed.data,
            created_at=now,
            created_by=caller.name,
        )
        session.add(webhook)
        # Without the path: that of a chat service is a secret itself.
        audit(session, context, caller, "webhook.created", {"project": project, "webhook": name})
        return {**_webhook_json(webhook), "secret": secret}


async def list_webhooks(
    context: Context, project: str, *, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the project's webhooks by name; never their secrets.

    Raises:
        ServiceError: not_found (the project).
    """
    statement = select(Webhook).where(Webhook.project == project).order_by(Webhook.name).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(Webhook.name > storable(read_key(cursor, "webhooks")))
    async with context.database.read() as session:
        await find_project(session, project)
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda webhook: webhook.name, of="webhooks")
    return [_webhook_json(webhook) for webhook in page], next_cursor


async def check_named(session: AsyncSession, spec: JobSpec) -> None:
    """Refuse a spec that asks webhooks to be told which its project has not, or which tell nothing.

    Raises:
        ServiceError: invalid_spec.
    """
    if not spec.notifications:
        return
    if not session.info.get(ARE_ON):
        raise invalid_spec(SpecError([Finding("notifications", f"nothing is told: {ARE_OFF}")]))
    named = {one.webhook for one in spec.notifications}
    found = select(Webhook.name).where(Webhook.project == spec.project, Webhook.name.in_(named))
    known = set((await session.scalars(found)).all())
    faults = [
        f"the project {spec.project!r} has no webhook {name!r}; its admins make one with "
        f"`rubato webhook add {name} https://... --on asked --project {spec.project}`"
        for name in sorted(named - known)
    ]
    if faults:
        raise invalid_spec(SpecError([Finding("notifications", fault) for fault in faults]))


async def remove(context: Context, project: str, name: str, caller: Principal) -> None:
    """Remove a webhook with its deliveries; what is on its way arrives.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.write() as session:
        webhook = await _find(session, project, name)
        await session.execute(delete(Webhook).where(Webhook.id == webhook.id))
        audit(session, context, caller, "webhook.deleted", {"project": project, "webhook": name})


async def send_test(context: Context, project: str, name: str, caller: Principal, *, wait_s: float) -> dict[str, Any]:
    """Put a test into the outbox; it is tried once. Gives the delivery, once it is over or the wait is.

    Raises:
        ServiceError: not_found, conflict (webhooks are off).
    """
    _check_on(context)
    now = context.clock()
    async with context.database.write() as session:
        webhook = await _find(session, project, name)
        row = delivery_row(webhook.id, None, TEST_KIND, "", now)
        row["body"] = trial_message(project, name, {"kind": TEST_KIND, "time": now})
        await session.execute(insert(Delivery).values(row))
        audit(session, context, caller, "webhook.tested", {"project": project, "webhook": name})
        notify(session, WEBHOOKS)

    async def look() -> dict[str, Any]:
        async with context.database.read() as session:
            delivery = await session.get(Delivery, row["id"])
        if delivery is None:
            raise not_found("webhook", name)
        return delivery_json(delivery)

    return await context.hub.wait_until([WEBHOOKS], look, is_over, wait_s)


async def list_deliveries(
    context: Context, project: str, name: str, *, status: str, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a webhook's deliveries, newest first.

    Raises:
        ServiceError: not_found, invalid_request (the cursor).
    """
    async with context.database.read() as session:
        webhook = await _find(session, project, name)
        statement = select(Delivery).where(Delivery.webhook_id == webhook.id).order_by(Delivery.id.desc())
        if status:
            statement = statement.where(Delivery.status == status)
        if cursor is not None:
            if not is_id(cursor, "dlv"):
                raise bad_cursor()
            statement = statement.where(Delivery.id < cursor)
        rows = (await session.scalars(statement.limit(limit + 1))).all()
    page, next_cursor = cut(rows, limit, lambda delivery: delivery.id)
    return [delivery_json(delivery) for delivery in page], next_cursor


def is_over(shown: dict[str, Any]) -> bool:
    """Whether nothing more becomes of a delivery."""
    return bool(shown["status"] != "pending")


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """A delivery as the API shows it."""
    return {
        "id": delivery.id,
        "type": delivery.kind,
        "job_id": delivery.job_id,
        "status": delivery.status,
        "tries": delivery.tries,
        "created_at": to_rfc3339(delivery.created_at),
        "next_at": optional_rfc3339(delivery.next_at),
        "finished_at": optional_rfc3339(delivery.finished_at),
        "last_status": delivery.last_status,
        "error": delivery.error,
    }


async def _find(session: AsyncSession, project: str, name: str) -> Webhook:
    found = select(Webhook).where(Webhook.project == project, Webhook.name == name)
    are_storable = is_storable(project) and is_storable(name)
    webhook = (await session.scalars(found)).one_or_none() if are_storable else None
    if webhook is None:
        raise not_found("webhook", name[:80])
    return webhook


def _check_on(context: Context) -> None:
    if not context.settings.webhooks:
        raise ServiceError(ErrorKind.CONFLICT, f"{ARE_OFF[0].upper()}{ARE_OFF[1:]}.")


def _webhook_json(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "name": webhook.name,
        "project": webhook.project,
        "url": webhook.url,
        "events": webhook.events,
        "created_at": to_rfc3339(webhook.created_at),
        "created_by": webhook.created_by,
    }
