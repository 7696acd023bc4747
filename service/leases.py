"""Roles of which there is one among all replicas, taken by compare-and-set in the transaction that acts in them."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, or_, update
from sqlalchemy.ext.asyncio import AsyncSession

from service.database import insert_for
from service.models import Lease

LIFETIME = timedelta(seconds=30)


def is_held(until: datetime, now: datetime, lifetime: timedelta) -> bool:
    """Whether a lease counts that was given for a lifetime.

    One that ends much later than any can was written by a clock that has been set back since: it does not. Clocks of
    replicas differ by less than another lifetime.
    """
    return now <= until <= now + 2 * lifetime


async def take_lease(session: AsyncSession, name: str, holder: str, now: datetime) -> bool:
    """Whether the role is the holder's from now on: a second replica waits for the row and finds it taken."""
    ours = {"holder": holder, "expires_at": now + LIFETIME}
    is_free = or_(Lease.expires_at < now, Lease.expires_at > now + 2 * LIFETIME)  # as `is_held` says
    free = or_(Lease.holder == holder, is_free)
    taken = update(Lease).where(Lease.name == name, free).values(ours).returning(Lease.name)
    if (await session.execute(taken.execution_options(synchronize_session=False))).first() is not None:
        return True
    first = insert_for(session, Lease).values(name=name, **ours).on_conflict_do_nothing(index_elements=["name"])
    return (await session.execute(first.returning(Lease.name))).first() is not None


async def release_leases(session: AsyncSession, holder: str | None = None) -> None:
    """Free the roles of a holder that ends; None: all, where whoever held one is dead."""
    await session.execute(delete(Lease) if holder is None else delete(Lease).where(Lease.holder == holder))
