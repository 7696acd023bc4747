"""Alembic's entry: runs in the transaction of the connection that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from service.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter most of a table in place: batch mode copies it.
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
