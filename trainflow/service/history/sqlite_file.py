"""SQLite's connections to one file, and its transactions.

Connections are kept for whoever comes next, and one stays with the file that it was opened for. So
whoever takes one sees first whether that file is still in its place: what is written to one that
was moved away, removed or replaced is lost. And no connection makes a file: one that is missing is
told, not begun anew without what was in it.

Process: any.  Thread: any.  Blocks: for who writes.  Fails: SQLAlchemyError.
"""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from trainflow.clock import SYSTEM_CLOCK

WRITES = "trainflow_writes"
"""Option of a connection: a transaction has the database to itself, from its beginning."""

LASTS = "trainflow_lasts"
"""Option of a connection that writes: what is done is on disk by the end, whatever happens."""

AT_ONCE = "trainflow_at_once"
"""Option of a connection that writes: it waits for no other."""

_TRIES_EVERY_S = 0.01
_FILE = "trainflow_file"


FileId = tuple[int, int]
"""What tells a file from others that have had its name: its device and its inode."""


def identify(file: Path) -> FileId | None:
    """Return which file is in a place; None if none is."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def prepare(engine: Engine, busy_s: float) -> None:
    """Have an engine's connections be to the file in its place, and their transactions as above.

    Args:
        engine: of SQLite, with a file that is there.
        busy_s: how long a connection waits for others.
    """
    name = engine.url.database
    assert name is not None, "a history is in a file"
    events = _Events(Path(name), busy_s)
    event.listen(engine, "do_connect", events.on_connecting)
    event.listen(engine, "connect", events.on_connected)
    event.listen(engine, "checkout", events.on_taken)
    event.listen(engine, "begin", events.on_begin)


class _Events:
    """What is done as connections are made, taken and used."""

    def __init__(self, file: Path, busy_s: float):
        self._file = file.absolute()
        self._busy_s = busy_s

    def on_connecting(
        self, _dialect: object, _record: object, arguments: list[Any], named: dict[str, Any]
    ) -> None:
        """Have a file opened, and none made."""
        arguments[:] = [f"{self._file.as_uri()}?mode=rw"]
        named["uri"] = True

    def on_connected(self, connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        """Have transactions begun by `on_begin`, not by the driver; note which file it is."""
        connection.isolation_level = None
        cursor = connection.cursor()
        self._use_wal(cursor)
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()
        record.info[_FILE] = identify(self._file)

    def on_taken(self, _connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        """See whether the file is still in its place; if not, all connections are made anew."""
        if record.info[_FILE] != identify(self._file):
            raise InvalidatePoolError(f"{self._file} is another file than it was, or gone")

    def _use_wal(self, cursor: sqlite3.Cursor) -> None:
        """Let readers not wait for who writes.

        Of several who do so to a new file SQLite fails some.
        """
        give_up_at_s = SYSTEM_CLOCK.monotonic_s() + self._busy_s
        while True:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or SYSTEM_CLOCK.monotonic_s() >= give_up_at_s:
                    raise
                SYSTEM_CLOCK.sleep(_TRIES_EVERY_S)
            else:
                return

    def on_begin(self, connection: Connection) -> None:
        """Begin a transaction."""
        options = connection.get_execution_options()
        if not options.get(WRITES, False):
            connection.exec_driver_sql("BEGIN")
            return
        # Without a flush a loss of power may take the newest transactions, never the database.
        flush = "FULL" if options.get(LASTS, False) else "NORMAL"
        connection.exec_driver_sql(f"PRAGMA synchronous = {flush}")
        if not options.get(AT_ONCE, False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(self._busy_s * 1000)}")
