"""What a chart of very many steps costs the service, and what its buckets cost at ingest. Prints a table.

`python -m benchmarks.charts --steps 1000000` (SQLite, in a folder of its own; a million rows take a minute or two).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from rubato.wire.spec import parse_spec
from service.clock import utc_now
from service.database import Database
from service.jobs import insert as insert_job
from service.models import Metric
from service.notify import Hub
from service.rollups import chart, roll_up
from tests.callers import an_admin

BATCH = 20_000
NAMES = ("loss", "samples", "step_seconds", "samples_per_second", "epoch")
CHARTS = ((("loss",), 1_000), (("loss",), 1_000), (NAMES, 1_000), (("loss",), 4_000))


async def fill(database: Database, steps: int) -> tuple[str, float]:
    """A job with so many rows; its id, and the seconds that its buckets took."""
    now = utc_now()
    spec = parse_spec({"name": "long", "recipe": "image-classifier"})
    async with database.write() as session:
        job_id = str((await insert_job(session, spec, caller=an_admin(), now=now))["id"])
    spent = 0.0
    for start in range(0, steps, BATCH):
        batch = range(start, min(start + BATCH, steps))
        rows: list[dict[str, Any]] = [
            {"job_id": job_id, "step": step, "position": step + 1, "time": now, "generation": 1, "workers": 1}
            | {"attempt": 1, "values": {name: 1 / (step + index + 1) for index, name in enumerate(NAMES)}}
            for step in batch
        ]
        async with database.write() as session:
            await session.execute(insert(Metric), rows)
            began = time.perf_counter()
            await roll_up(session, job_id, [(row["step"], now, row["values"]) for row in rows])
            spent += time.perf_counter() - began
    return job_id, spent


async def measure(steps: int, folder: Path) -> None:
    """Fill a database, and draw."""
    database = Database(f"sqlite+aiosqlite:///{folder / 'rubato.db'}", Hub(1))
    await database.start()
    try:
        job_id, spent = await fill(database, steps)
        print(f"buckets of {steps} rows: {spent:.1f} s, {1e3 * spent / steps:.3f} ms a row")
        print("metrics  points  of a bucket  ms  ms of CPU")
        for names, points in CHARTS:
            async with database.read() as session:
                began, cpu = time.perf_counter(), time.process_time()
                found = await chart(
                    session, job_id, frozenset(names), max_points=points, axis="step", start=0, end=None
                )
                spent, cpu = time.perf_counter() - began, time.process_time() - cpu
            shown = len(found["series"]["loss"]["x"])
            print(f"{len(names):7}  {shown:6}  {found['bucket_steps']:11}  {1e3 * spent:.0f}  {1e3 * cpu:.0f}")
    finally:
        await database.close()


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rubato-charts-") as folder:
        asyncio.run(measure(arguments.steps, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
