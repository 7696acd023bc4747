"""SQLite, which has no statistics of the table, finds the few jobs that live among very many that have ended.

Plans, not times: a plan that walks the table is as fast as any while the table is small.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event

from rubato.wire.cluster import Outcome, Result
from service.access import Principal, ProjectRole, Role
from service.watch import JobWatch
from tests.integration.service.test_people import make_user
from tests.simulated_controller import worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio

MEMBER = Principal(Role.USER, "ann", user_id="user_1", projects={"default": ProjectRole.EDITOR})


@dataclass
class Recorder:
    """The statements that were made about a table."""

    about: str
    statements: list[tuple[str, Any]] = field(default_factory=list)

    def note(self, _c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, has_many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and self.about in statement:
            self.statements.append((statement, parameters[0] if has_many else parameters))

    def plans(self, file: Path) -> list[list[str]]:
        """The steps of each, as SQLite would take them."""
        with closing(sqlite3.connect(file)) as database:
            return [
                [step for *_, step in database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
                for statement, parameters in self.statements
            ]

    def slow(self, file: Path) -> list[str]:
        """Steps that look at jobs which have ended long ago."""
        plans = zip(self.plans(file), self.statements, strict=True)
        return [f"{step}: {made[-400:]}" for plan, (made, _) in plans for step in plan if _walks(step)]


def _walks(step: str) -> bool:
    words = step.split()
    if words[0] not in ("SCAN", "SEARCH") or words[1] != "jobs":
        return False
    if "ix_jobs_project_id" in step:
        return True
    # A partial index may be walked: it holds the few.
    return (words[0] == "SCAN" and "USING" not in words) or ("sqlite_autoindex_jobs_1" in step and "(id=?)" not in step)


@contextmanager
def recorded(about: str = "jobs") -> Iterator[Recorder]:
    recorder = Recorder(about)
    event.listen(Engine, "before_cursor_execute", recorder.note)
    try:
        yield recorder
    finally:
        event.remove(Engine, "before_cursor_execute", recorder.note)


async def train(bench: Bench) -> SimulatedController:
    """One job trains and has a checkpoint; others have ended, wait, and are to stop by force."""
    ended = await bench.start("ended")
    await ended.report(outcome=Outcome(state="succeeded", result=Result(step=9, digest="d" * 64)))
    training = await bench.start("training", limits={"max_duration": 3600})
    saved = training.event("checkpoint.committed", step=1, checkpoint_id="1-1", bytes=1, files=[])
    await training.report(step=1, events=(saved,), worker_reports=(worker(1),))
    await bench.start("stopping")
    await bench.post("/jobs/stopping/cancel", 202, {"force": True})
    await bench.submit("waiting", workers={"initial": 20, "min": 20, "max": 20})
    changed = await bench.client.patch("/api/v1/projects/default", json={"quota": {"max_queued": 50}})
    assert changed.status_code == 200, changed.text
    return training


async def test_the_few_jobs_that_live_are_found_among_those_that_ended(make_bench: MakeBench) -> None:
    async with make_bench() as bench:
        training = await train(bench)
        member = await make_user(bench, "ann", default="editor")
        watch = JobWatch(bench.context, MEMBER)
        await watch.snapshot()

        async def asks(path: str) -> None:
            response = await member.get(f"/api/v1{path}")
            assert response.status_code == 200, response.text

        async def is_told_changes() -> None:
            await training.report(step=2)
            assert "training" in [shown["name"] for _, shown in await watch.changes()]

        async def deletes() -> None:
            await bench.client.delete("/api/v1/checkpoints/ckpt_0")
            await bench.client.delete("/api/v1/jobs/ended")

        async def lapses() -> None:
            bench.clock.advance(50)
            await bench.schedule()
            bench.clock.advance(3600)
            await bench.schedule()

        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "a sync": bench.agent.sync,
            "a report": lambda: training.report(step=3),
            "a round": bench.loop.run_once,
            "a drain": lambda: bench.post("/nodes/node-1/drain", 200),
            "a submit": lambda: bench.submit("another"),
            "a clone": lambda: bench.post("/jobs/training/clone", 201, {}),
            "a member's watch": is_told_changes,
            "a member's look at a job": lambda: asks("/jobs/training"),
            "a member's look at the cluster": lambda: asks("/cluster"),
            "a member's look at the project": lambda: asks("/projects/default"),
            "a deletion": deletes,
            "a scrape": lambda: bench.client.get("/metrics"),
            "lapses": lapses,
        }
        slow = {}
        for name, step in steps.items():
            with recorded() as recorder:
                await step()
            assert recorder.statements, name
            slow[name] = recorder.slow(bench.settings.home / "rubato.db")
    assert {name: plans for name, plans in slow.items() if plans} == {}


async def test_lists_of_several_projects_take_the_newest_of_each(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        for project in ("audio", "vision"):
            await bench.post("/projects", 201, {"name": project})
        names: dict[str, list[str]] = {}
        for number in range(12):
            project = ("default", "audio", "vision")[number % 3]
            await bench.submit(name := f"job-{number}", project=project, labels={"part": str(number // 6)})
            names.setdefault(project, []).insert(0, name)
        ann = await make_user(bench, "ann", audio="editor", vision="viewer")
        hers = [f"job-{number}" for number in reversed(range(12)) if number % 3]

        async def listed(**asked: Any) -> list[str]:
            found: list[str] = []
            while True:
                page = (await ann.get("/api/v1/jobs", params={"limit": 3, **asked})).json()
                assert len(page["items"]) <= 3
                found += [one["name"] for one in page["items"]]
                if page["next_cursor"] is None:
                    return found
                asked["cursor"] = page["next_cursor"]

        with recorded() as recorder:
            assert await listed() == hers
        if not database_url:
            (first, *_) = recorder.plans(bench.settings.home / "rubato.db")
            assert first.count("SEARCH jobs USING INDEX ix_jobs_project_id (project=?)") == 2, first
            assert not any("B-TREE" in step for step in first), "all that there ever were would be sorted"
        assert await listed(project="audio") == names["audio"]
        assert await listed(project="default") == []
        assert await listed(label="part=0") == hers[4:]
        assert await listed(q="job-1") == [name for name in hers if "job-1" in name]
