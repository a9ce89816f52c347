"""Bring a database to this release's form, whichever earlier one it has.

Process: any that opens the history.  Blocks: on the database, and for another process that does the
same.  Fails: HistoryError if a newer release has written it; nothing is changed then.
"""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from trainflow.errors import HistoryError

# Any number, as long as nothing else in a PostgreSQL database takes it: "TrainFlo".
_LOCK = 0x5472_6169_6E46_6C6F
# alembic keeps what it migrates in a global variable.
_ONE_IN_PROCESS = threading.Lock()


def migrate(connection: Connection) -> None:
    """Run the migrations that are missing, within the transaction of ``connection``.

    Of several processes that do so at once, one runs them, and the others wait: on SQLite since
    the transaction writes, on PostgreSQL by a lock.

    Raises:
        HistoryError: the database was written by a newer release.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not is_current(connection):
        config = make_config()
        config.attributes["connection"] = connection
        with _ONE_IN_PROCESS:
            command.upgrade(config, "head")


def is_current(connection: Connection) -> bool:
    """Whether a database has this release's form.

    Raises:
        HistoryError: it was written by a newer release.
    """
    script = ScriptDirectory.from_config(make_config())
    known = {revision.revision for revision in script.walk_revisions()}
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in known:
        raise HistoryError(
            f"database: got one of revision {found}, expected at most {script.get_current_head()}; "
            "it was written by a newer release of TrainFlow: install that one"
        )
    return found == script.get_current_head()


def make_config() -> Config:
    """Return where alembic finds the migrations."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
