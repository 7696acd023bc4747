"""Seals anew at a start what lies under another key than the first one, so that the other one can be taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.job_secrets import purpose_of
from service.models import AttemptSecret, Job, Secret, Webhook
from service.vault import Sealed, Vault
from service.webhooks.outbox import purpose_of as purpose_of_webhook


async def seal_anew(session: AsyncSession, vault: Vault) -> None:
    """Every row whose key is still there; nothing where there is no key to seal with."""
    if vault.fault:
        return
    given = select(AttemptSecret, Job.project).join(Job, Job.id == AttemptSecret.job_id)
    await _seal_rows(session, vault, select(Secret, Secret.project), lambda row, project: purpose_of(project, row.name))
    await _seal_rows(session, vault, given, lambda row, project: purpose_of(project, row.name))
    await _seal_rows(session, vault, select(Webhook, Webhook.id), lambda _row, webhook: purpose_of_webhook(webhook))


async def _seal_rows(
    session: AsyncSession, vault: Vault, rows: Select[Any, str], purpose: Callable[[Any, str], str]
) -> None:
    """The rows of a table, each with what its purpose is made of."""
    table = rows.column_descriptions[0]["entity"]
    # Locked, for at another replica somebody may set one just now; in one order, for two may start at once.
    stale = rows.where(table.key_id != vault.key_id).order_by(*table.__table__.primary_key).with_for_update(of=table)
    # What was the same stays the same: of a value that many attempts were given there is one ciphertext.
    anew: dict[tuple[Sealed, str], Sealed] = {}
    for row, owner in (await session.execute(stale)).all():
        old = (Sealed(row.key_id, row.sealed), purpose(row, owner))
        if old not in anew:
            anew[old] = vault.seal_anew(*old)
        row.key_id, row.sealed = anew[old].key_id, anew[old].data
