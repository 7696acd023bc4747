"""Whether anybody listened meanwhile, and by the right clock: before silence is held against anybody."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.attempts import rearm_leases
from service.context import Context
from service.database import insert_for
from service.heartbeat import ABSENCE_S, decide_skew
from service.leases import is_held
from service.models import Lease

LISTENING = "listening"
"""The lease that all replicas hold together: it lasts while the scheduling loop of any of them goes its rounds."""
NOTE_S = ABSENCE_S / 2
"""How often a replica renews it."""


async def compare_clocks(context: Context) -> str | None:
    """Why nothing is to be judged by this clock: it differs from that of the database, which all replicas see."""
    before = context.clock()
    told = await context.database.now()
    because = None if told is None else decide_skew(before, told, context.clock())
    context.heartbeat.out_of_step = because
    return because


async def rearm_unheard(context: Context) -> bool:
    """Give every live attempt a whole lease, unless another replica listened while this one did not.

    Where one did, the silence is that of the controllers: a replica that restarts again and again must not keep those
    alive that are gone. Gives whether leases were given.
    """
    now = context.clock()
    async with context.database.write() as session:
        if not context.settings.is_sqlite:
            heard = await session.scalar(select(Lease.expires_at).where(Lease.name == LISTENING).with_for_update())
            if heard is not None and is_held(heard, now, _lifetime(context)):
                return False
            await _renew(session, context, now)
        await rearm_leases(session, now, context.settings.lease)
        return True


async def note_listening(context: Context) -> None:
    """Tell other replicas that this one listens. With SQLite there are none."""
    if not context.settings.is_sqlite:
        async with context.database.write() as session:
            await _renew(session, context, context.clock())


async def _renew(session: AsyncSession, context: Context, now: datetime) -> None:
    until = {"expires_at": now + _lifetime(context)}
    insert = insert_for(session, Lease).values(name=LISTENING, holder="", **until)
    await session.execute(insert.on_conflict_do_update(index_elements=["name"], set_=until))


def _lifetime(context: Context) -> timedelta:
    # So long may pass between two rounds before a loop says by itself that it stood still.
    return context.settings.scheduler_interval + timedelta(seconds=ABSENCE_S)
