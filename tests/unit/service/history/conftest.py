"""Every test of the history runs on SQLite and on a real PostgreSQL server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import delete

from tests.testbed.postgres_server import PostgresServer
from tests.unit.service.history.records import HandClock, Home
from trainflow.service.history.history import History, open_history
from trainflow.service.history.schema import metadata


def empty(history: History) -> None:
    """Have nothing left in a history."""
    with history.database.write() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))


MakeUrl = Callable[[], str]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.storage)])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeUrl]:
    """Return what makes the URL of another empty database."""
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path / uuid4().hex}.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made: list[str] = []

    def make() -> str:
        made.append(f"history-{uuid4().hex[:12]}")
        return server.make_database(made[-1])

    yield make
    for name in made:
        server.drop_database(name)


@pytest.fixture
def url(make_url: MakeUrl) -> str:
    return make_url()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.make_database("history")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.storage)])
def history(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[History]:
    """Return an empty history; of PostgreSQL the same one is emptied for each test."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'history.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with open_history(url, clock) as opened:
        empty(opened)
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")
