"""A real PostgreSQL server on a socket in a folder of its own, reached by nothing from outside.

It refuses to run as root, so under root it runs as the user of its package, or as nobody.

Process: the test's; the server is its child.  Blocks: until it answers.
"""

import os
import pwd
import shutil
import signal
from pathlib import Path
from urllib.parse import quote

from tests.testbed.daemons import Daemon, call, wait_for

PACKAGES = "postgresql"
_USERS = ("postgres", "nobody")
_UP_WITHIN_S = 60.0
# What was committed survives a crash of the server; nothing need survive one of the machine.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "50",
    "shared_buffers": "16MB",
}


def find_programs() -> Path | None:
    """Return the folder with the server's programs: Debian keeps them out of the path."""
    candidates = [Path(path) for path in os.environ.get("PATH", "").split(os.pathsep)]
    candidates = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *candidates]
    for folder in candidates:
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    return None


class PostgresServer:
    """One server; everything it writes is below its folder."""

    def __init__(self, folder: Path, programs: Path):
        self._folder = folder
        self._programs = programs
        self._as_user = _drop_root()
        settings = [word for pair in _SETTINGS.items() for word in ("-c", "=".join(pair))]
        data, postgres = str(folder / "data"), str(programs / "postgres")
        command = [*self._as_user, postgres, "-D", data, "-k", str(folder), *settings]
        self._daemon = Daemon(command, folder / "log")

    def make(self) -> None:
        """Make an empty server, and start it."""
        self._give_away()
        initdb = str(self._programs / "initdb")
        options = ("-U", "trainflow", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync")
        call([*self._as_user, initdb, "-D", str(self._folder / "data"), *options], cwd="/")
        self.start()

    def start(self) -> None:
        """Start it with what it has."""
        self._daemon.start()
        try:
            wait_for(self._answers, _UP_WITHIN_S, "answer from PostgreSQL")
        except TimeoutError as error:
            raise RuntimeError(f"PostgreSQL doesn't come up: {self._daemon.describe()}") from error

    def kill(self) -> None:
        """End it at once, as it crashes."""
        self._daemon.end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it, and with it every connection."""
        self._daemon.end(signal.SIGINT)

    def make_database(self, name: str) -> str:
        """Make an empty database, and return its URL."""
        self._ask("postgres", f'CREATE DATABASE "{name}"')
        return f"postgresql://trainflow@/{name}?host={quote(str(self._folder))}"

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._ask("postgres", f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _ask(self, database: str, query: str) -> str:
        psql = shutil.which("psql") or str(self._programs / "psql")
        where = ("-h", str(self._folder), "-U", "trainflow", "-d", database)
        return call([psql, "-X", "-q", "-t", *where, "-c", query])

    def _answers(self) -> bool:
        try:
            self._ask("postgres", "SELECT 1")
        except RuntimeError:
            return False
        return True

    def _give_away(self) -> None:
        """Let the server write into its folder."""
        if os.geteuid() == 0:
            user = _find_user()
            os.chown(self._folder, user.pw_uid, user.pw_gid)


def _drop_root() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = _find_user()
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return ["setpriv", *ids, "--pdeathsig", "KILL"]


def _find_user() -> pwd.struct_passwd:
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(names[name] for name in _USERS if name in names)
