from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest
import structlog
from fastapi import FastAPI

from api.app import create_app
from service.context import Context
from service.database import Database
from service.notify import Hub
from service.scheduling.loop import SchedulingLoop
from service.settings import Settings
from tests.integration.service.processes import ServiceProcess
from tests.postgres import drop_database, migrated_database, new_database, running_postgres
from tests.simulated_controller import SimulatedAgent, SimulatedController, bearer

BASE_URL = "http://127.0.0.1:8642"

# As the service: without the pretty tracebacks, which show what variables hold and take seconds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ManualClock:
    """Moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def keep_in_step(patched: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """Let the database's clock say the same."""

    async def now(_: Database) -> datetime:
        return clock()

    patched.setattr(Database, "now", now)


@dataclass
class Bench:
    """A running application, and hands to move it by."""

    app: FastAPI
    settings: Settings
    clock: ManualClock
    client: httpx.AsyncClient
    token: str
    agent: SimulatedAgent
    controllers: dict[str, SimulatedController] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.app.state.context

    @property
    def loop(self) -> SchedulingLoop:
        return self.app.state.running.scheduling

    async def submit(self, name: str = "digits", **spec: Any) -> dict[str, Any]:
        response = await self.client.post("/api/v1/jobs", json={"name": name, "recipe": "image-classifier", **spec})
        assert response.status_code == 201, response.text
        return response.json()

    async def job(self, reference: str) -> dict[str, Any]:
        response = await self.client.get(f"/api/v1/jobs/{reference}")
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, expect: int, body: Any = None, **parameters: Any) -> dict[str, Any]:
        response = await self.client.post(f"/api/v1{path}", json=body, params=parameters)
        assert response.status_code == expect, response.text
        return response.json()

    async def get(self, path: str, expect: int = 200, **parameters: Any) -> dict[str, Any]:
        response = await self.client.get(f"/api/v1{path}", params=parameters)
        assert response.status_code == expect, response.text
        return response.json()

    async def schedule(self) -> None:
        await self.agent.sync()
        await self.loop.run_once()

    async def start(self, name: str = "digits", **spec: Any) -> SimulatedController:
        """A job that runs under a simulated controller."""
        job = await self.submit(name, **spec)
        await self.schedule()
        controller = await self.controller_of(job["id"])
        await controller.acquire()
        await controller.report()
        assert (await self.job(job["id"]))["status"] == "running"
        return controller

    async def controller_of(self, job_id: str, **changes: Any) -> SimulatedController:
        reply = await self.agent.sync()
        ticket = next(item.ticket for item in reply.run if item.job_id == job_id)
        return SimulatedController(self.client, job_id, ticket, **changes)


MakeBench = Callable[..., AbstractAsyncContextManager[Bench]]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One real PostgreSQL for the session; stopped at its end."""
    with running_postgres(is_durable=False) as url:
        yield url


@pytest.fixture
def new_postgres(postgres_url: str) -> Callable[[], str]:
    """Makes empty databases."""

    return lambda: new_database(postgres_url)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str) -> str:
    """The name of a database to copy."""
    return migrated_database(postgres_url)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to copy, as the service makes it."""
    file = tmp_path_factory.mktemp("migrated") / "rubato.db"

    async def make() -> None:
        database = Database(f"sqlite+aiosqlite:///{file}", Hub(1))
        await database.start()
        await database.close()

    asyncio.run(make())
    return file


DATABASES = ["sqlite", "postgres"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test on both databases the long tests have one half, chosen by the test's name, and the others the other."""
    twins: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if Path(__file__).parent not in item.path.parents or {"long", "each_database"} & {*item.keywords}:
            continue
        for database in DATABASES:
            if database in item.name:
                twins.setdefault(item.nodeid.replace(database, ""), {})[database] = item
    for name, tests in twins.items():
        if len(tests) == len(DATABASES):
            tests[DATABASES[crc32(name.encode()) % len(DATABASES)]].add_marker("long")


def _database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """With tables, no rows. An empty address: SQLite in the home."""
    if request.param == "sqlite":
        yield ""
        return
    server = request.getfixturevalue("postgres_url")
    url = new_database(server, like=request.getfixturevalue("migrated_postgres"))
    yield url
    drop_database(server, url)


database_url = pytest.fixture(params=DATABASES)(_database_url)
shared_database_url = pytest.fixture(params=DATABASES, scope="module")(_database_url)
"""For all tests of a module."""


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Iterator[ServiceProcess]:
    """A real process, not started yet, on each database."""
    process = ServiceProcess(tmp_path / "home", RUBATO_DATABASE_URL=database_url)
    yield process
    process.end()


@pytest.fixture
def make_bench(tmp_path: Path, migrated_sqlite: Path) -> MakeBench:
    """Starts applications; several may share a database or a home."""

    @asynccontextmanager
    async def make(
        database_url: str = "", home: Path | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> AsyncIterator[Bench]:
        clock = clock or ManualClock()
        resolved = Settings(
            home=home or tmp_path / "home", database_url=database_url, web_dist=tmp_path / "dist", **settings
        )
        if resolved.is_sqlite and not resolved.home.exists():
            resolved.home.mkdir(mode=0o700, parents=True)
            shutil.copyfile(migrated_sqlite, resolved.home / "rubato.db")
        app = create_app(resolved, clock=clock, with_loop=False)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client,
        ):
            token = (resolved.home / "token").read_text().strip()
            client.headers.update(bearer(token))
            agent = SimulatedAgent(client, (resolved.home / "cluster-token").read_text().strip())
            yield Bench(app, resolved, clock, client, token, agent)

    return make


@pytest.fixture
async def bench(make_bench: MakeBench, database_url: str) -> AsyncIterator[Bench]:
    """One application, on each database."""
    async with make_bench(database_url) as running:
        yield running
