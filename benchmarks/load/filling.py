"""A database with a past: many jobs that have ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Table, create_engine, insert, select

from benchmarks.load.service import Service
from service.ids import new_id
from service.models import Job

AT_ONCE = 2_000


def fill(service: Service, template_id: str, count: int) -> None:
    """Copy an ended job so many times, each a second older than the one before; past the API, which would take an hour.

    Args:    template_id: a job that has ended, so that nobody acts on its copies.
    """
    table = Job.__table__
    assert isinstance(table, Table), "jobs are one table"
    engine = create_engine(service.database_url)
    now = datetime.now(UTC)
    with engine.connect() as connection:
        template = dict(connection.execute(select(table).where(table.c.id == template_id)).mappings().one())
    for first in range(0, count, AT_ONCE):
        moments = [now - timedelta(seconds=1 + number) for number in range(first, min(first + AT_ONCE, count))]
        rows = [
            template | {"id": new_id("job", moment), "name": f"past-{first + number}", "created_at": moment}
            for number, moment in enumerate(moments)
        ]
        with engine.begin() as connection:  # short: the service shares the one writer of SQLite
            connection.execute(insert(table), rows)
    engine.dispose()
