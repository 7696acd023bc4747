"""Attempts after a restore: strictly larger than any that was granted, also those that the backup does not know.

The database goes back in time, the cluster does not: workers, checkpoints and controllers carry attempts that were
granted after the backup. Their number is bounded by the time since: a controller that fails waits two seconds before
the next (`jobs.controller.CRASH_PAUSE_S`), and one that is replaced has to start. So each job that is not final is
raised by ten for each second since the backup and a margin; its old attempts are over, and whoever holds one is told
`fenced`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from service.backup.archive import DatabaseKind

MARGIN = 1000
"""For clocks that differ by a minute, and for a backup and a restore in the same second."""
MOST_A_SECOND = 10
"""Attempts of one job; a controller's process takes longer to start."""
MOST = 1 << 30
"""Numbers of checkpoint requests hold the attempt above 32 bits (`rubato.engine.coordinator.ledger`)."""

NOT_FINAL = "status NOT IN ('succeeded', 'failed', 'cancelled')"


def decide_raise(created_at: datetime, now: datetime) -> int:
    """By how much the attempts of every job are raised: more than could have been granted since the backup."""
    return min(MOST, MARGIN + max(0, math.ceil((now - created_at).total_seconds() * MOST_A_SECOND)))


def statements_after_restore(kind: DatabaseKind, raise_by: int) -> list[str]:
    """SQL that runs in the restored database before anybody sees it; knows the first migration's columns only.

    A live attempt stays live under a number that nobody holds, so the next controller gets its own at once, and where
    none comes the lease runs out as ever.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f") + ("+00" if kind == "postgresql" else "")
    event = "The service was restored from a backup: what it was told since the backup is gone."
    data = """'{"attempt": ' || attempt || '}'""" if kind == "sqlite" else "jsonb_build_object('attempt', attempt)"
    return [
        f"UPDATE attempts SET ended_at = '{now}', outcome = 'superseded' WHERE ended_at IS NULL",
        f"UPDATE jobs SET attempt = attempt + {raise_by:d}, last_pos = last_pos + 1, revision = revision + 1, "
        f"desired_version = desired_version + 1, updated_at = '{now}' WHERE {NOT_FINAL}",
        "INSERT INTO events (job_id, position, time, kind, message, data) "
        f"SELECT id, last_pos, '{now}', 'service.restored', '{event}', {data} FROM jobs WHERE {NOT_FINAL}",
        "INSERT INTO audit (time, actor, action, detail) "
        f"VALUES ('{now}', 'backup', 'service.restored', '{{\"attempts_raised_by\": {raise_by:d}}}')",
    ]
