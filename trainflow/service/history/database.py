"""A database of jobs: SQLite in a file, or PostgreSQL; its connections and its transactions.

A transaction that writes has the database to itself on SQLite, from its beginning: two writers
never find out at their end that they have read what the other changed. On PostgreSQL writers of one
job wait for each other (`lock_job`).

Who writes has connections of its own, few of them: however many wait for a writer before them, who
reads has one.

Process: any.  Thread: any.  Blocks: on the database; a writer for those before it, at most
``_BUSY_S`` for those of its own process, and as long again for others'.  Fails: HistoryError.
"""

import json
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from trainflow.coordination import names
from trainflow.errors import ConfigError, HistoryError
from trainflow.service.history import sqlite_file
from trainflow.service.history.migration import is_current, migrate
from trainflow.service.history.sqlite_file import AT_ONCE, LASTS, WRITES, FileId, identify

_VARIABLE = "TRAINFLOW_DATABASE_URL"
_BUSY_S = 15.0
_CONNECT_S = 5
_ENDS_WITHIN_S = 5.0
_SILENT_MS = 20_000
_STATEMENT_MS = 60_000
_WRITERS = {"sqlite": 1, "postgresql": 5}  # connections; SQLite has one writer at a time anyway
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}


class Database:
    """Connections to one database."""

    def __init__(self, engine: Engine, writers: Engine):
        """Take what makes connections.

        Args:
            engine: for those that wait for nobody who writes.
            writers: for the others.
        """
        self._engine = engine
        self._writers = writers
        self._num_at_work = 0
        self._changed = threading.Condition()
        self._writing = writers.execution_options(**{WRITES: True})
        self._lasting = writers.execution_options(**{WRITES: True, LASTS: True})
        self._hasty = engine.execution_options(**{WRITES: True, AT_ONCE: True})
        self._reading = engine
        if engine.dialect.name == "postgresql":  # where each query else sees what is new
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    def identify(self) -> FileId | None:
        """Return which file it is in; None if it is missing, or on a server."""
        file = self._engine.url.database
        return identify(Path(file)) if self.dialect == "sqlite" and file else None

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Read from the database as it is at the first query.

        Raises:
            HistoryError: it doesn't answer.
        """
        with self._telling(), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self, *, can_be_repeated: bool = False) -> Generator[Connection]:
        """Change the database: all of it once the block is left, or nothing if it raises.

        Args:
            can_be_repeated: a loss of power may take the change, since it is then made again. Not
                before it is on disk the block is left otherwise.

        Raises:
            HistoryError: it doesn't answer, has no room, or was busy for too long.
        """
        engine = self._writing if can_be_repeated else self._lasting
        with self._telling(), engine.begin() as connection:
            yield connection

    @contextmanager
    def write_at_once(self) -> Generator[Connection]:
        """Change the database as `write` does, but wait for no other writer.

        Raises:
            HistoryError: it doesn't answer, has no room, or somebody else is writing.
        """
        with self._telling(), self._hasty.begin() as connection:
            yield connection

    def check(self) -> None:
        """Raise HistoryError if it doesn't answer."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Let go of its connections; it can be used again, with others.

        What is asked in other threads, maybe for somebody who has left, is waited for: its
        connection would stay open. A database that doesn't answer isn't waited for any longer.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._num_at_work, _ENDS_WITHIN_S)
        for engine in (self._engine, self._writers):
            engine.dispose()

    @contextmanager
    def _telling(self) -> Generator[None]:
        with self._changed:
            self._num_at_work += 1
        try:
            yield
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()
            raise HistoryError(
                f"database {self._engine.url.render_as_string()}: expected it to answer and to "
                f"have room ({type(error).__name__}: {' '.join(reason)}); mend it, or set "
                f"{_VARIABLE} to another one"
            ) from error
        finally:
            with self._changed:
                self._num_at_work -= 1
                self._changed.notify_all()


def default_url() -> str:
    """Return TRAINFLOW_DATABASE_URL, else that of ``TRAINFLOW_HOME/history.db``."""
    path = names.home() / "history.db"
    return os.environ.get(_VARIABLE) or f"sqlite:///{path.absolute()}"


def open_database(url: str | None = None) -> Database:
    """Open a database, and bring its tables to this release's form.

    Args:
        url: see `trainflow.service.history.history.open_history`.

    Raises:
        ConfigError: no database that can be used here.
        HistoryError: it doesn't answer, or was written by a newer release.
    """
    parsed = _parse(default_url() if url is None else url)
    writers = {"pool_size": _WRITERS[parsed.get_backend_name()], "max_overflow": 0}
    database = Database(_make_engine(parsed), _make_engine(parsed, **writers, pool_timeout=_BUSY_S))
    try:
        with database.read() as connection:
            is_migrated = is_current(connection)
        if not is_migrated:
            with database.write() as connection:
                migrate(connection)
    except BaseException:
        database.close()
        raise
    return database


def require_there(url: str | None = None) -> None:
    """Raise ConfigError for a SQLite database that nobody has made; nothing is made."""
    text = default_url() if url is None else url
    if not text.startswith("sqlite"):
        return
    with suppress(ArgumentError):  # told where it is opened
        file = make_url(text).database
        if file and not Path(file).is_file():
            raise ConfigError(
                f"{_VARIABLE}: got {file}, where no file is, expected a service's database; mend "
                "the path, or make one by `trainflow serve` or `trainflow token create`"
            )


def insert_if_absent(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Add a row unless there is one of its primary key; returns whether it was added.

    A transaction that is about to add the same one is waited for.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    insert = sqlite.insert if is_sqlite else postgresql.insert
    keys = list(table.primary_key)
    adding = insert(table).values(dict(row)).on_conflict_do_nothing(index_elements=keys)
    return connection.execute(adding.returning(*keys)).first() is not None


def _parse(url: str) -> URL:
    """Return a URL with the driver that is used here; raises ConfigError."""
    try:
        parsed = make_url(url)
        driver = _DRIVERS[parsed.drivername.partition("+")[0]]
    except (ArgumentError, KeyError, ValueError) as error:
        kind = url.partition(":")[0]
        raise ConfigError(
            f"{_VARIABLE}: got a URL that begins with {kind!r}, expected "
            "sqlite:////path/to/history.db or postgresql://user@host/name"
        ) from error
    if driver == _DRIVERS["sqlite"]:
        _require_file(parsed)
    return parsed.set(drivername=driver)


def _require_file(url: URL) -> None:
    """Make a SQLite database's folder and file; raises ConfigError if it is none in a file.

    The file is its owner's alone, as jobs' configurations are in their records, and what SQLite
    keeps beside it has its mode.
    """
    if not url.database or url.database == ":memory:" or url.query:
        raise ConfigError(
            f"{_VARIABLE}: got {url.render_as_string()!r}, expected the path of a file after "
            "sqlite:///, and no options: a history in memory would be gone with its process"
        )
    try:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{_VARIABLE}: got {url.database}, whose folder can't be made ({error}); expected a "
            "path in a folder that can be written"
        ) from error
    with suppress(OSError):  # it is there, with whatever mode it was given; or SQLite says why not
        os.close(os.open(url.database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _make_engine(url: URL, **pool: float) -> Engine:
    is_sqlite = url.get_backend_name() == "sqlite"
    # A server whose network is cut is given up, too.
    patience = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": _SILENT_MS}
    try:
        engine = create_engine(
            url,
            connect_args={"timeout": _BUSY_S} if is_sqlite else patience,
            pool_pre_ping=not is_sqlite,
            **pool,
            json_serializer=_to_json,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{_VARIABLE}: got {url.render_as_string()!r}, whose driver is not installed "
            f"({error}); install it with: pip install 'trainflow[service,postgres]'"
        ) from error
    if is_sqlite:
        sqlite_file.prepare(engine, _BUSY_S)
    else:
        event.listen(engine, "connect", _prepare_postgresql)
        event.listen(engine, "begin", _begin_postgresql)
    return engine


def _to_json(value: object) -> str:
    """Write JSON that every database takes: what is not a number in JSON must not come so far."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get(AT_ONCE, False):
        connection.exec_driver_sql("SET LOCAL lock_timeout = 1")  # ms; 0 would be for ever


def _prepare_postgresql(connection: Any, _record: object) -> None:  # noqa: ANN401  the driver's own
    """Set up a connection: no query keeps whoever asked for ever."""
    cursor = connection.cursor()
    cursor.execute(f"SET statement_timeout = {_STATEMENT_MS}")
    cursor.execute(f"SET lock_timeout = {int(_BUSY_S * 1000)}")
    cursor.close()
    connection.commit()
