"""A database whose file is moved away, removed or replaced while it is open: told, and never split.

Connections are kept open: each must see it, whoever opened it for whatever.
"""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.service.history.records import JOB_ID, Home
from trainflow.errors import HistoryError, TokenRefusedError
from trainflow.service.history.history import History, open_history
from trainflow.service.history.records import Scope

NUM_READERS = 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a b#%41" / "history.db"


@pytest.fixture
def used(file: Path) -> Iterator[History]:
    """A history with as many open connections as several threads have needed at once."""
    with open_history(f"sqlite:///{file}") as history:
        use_all(history)
        yield history


def use_all(history: History) -> None:
    """Have several connections read at once, and one write; raises what the first one has."""
    together = threading.Barrier(NUM_READERS)

    def read() -> None:
        try:
            with history.database.read() as connection:
                together.wait(10.0)
                connection.exec_driver_sql("SELECT 1")
        except HistoryError:
            together.abort()
            raise

    with ThreadPoolExecutor(NUM_READERS) as pool:
        asked = [pool.submit(read) for _ in range(NUM_READERS)]
    errors = [each.exception() for each in asked]
    for error in sorted(filter(None, errors), key=lambda each: not isinstance(each, HistoryError)):
        raise error
    with history.database.write():
        pass


def move(file: Path, to: Path) -> None:
    """Move a database, with what SQLite keeps beside it."""
    to.mkdir()
    for each in file.parent.glob(f"{file.name}*"):
        each.rename(to / each.name)


def test_a_file_that_is_gone_is_told_and_none_is_made(used: History, file: Path, tmp_path: Path):
    token = used.tokens.create("me", [Scope.READ])
    move(file, tmp_path / "away")
    for act in (used.check, lambda: use_all(used), lambda: used.tokens.create("x", [Scope.READ])):
        with pytest.raises(HistoryError, match="expected it to answer"):
            act()
    assert [*file.parent.iterdir()] == []
    (file.parent).rmdir()
    (tmp_path / "away").rename(file.parent)
    use_all(used)
    assert used.tokens.check(token.secret).name == "me", "nothing need be restarted"


def test_a_file_that_was_replaced_is_the_database_for_everybody(
    used: History, file: Path, tmp_path: Path
):
    before = used.tokens.create("before", [Scope.READ])
    move(file, tmp_path / "away")
    with open_history(f"sqlite:///{file}") as other:
        after = other.tokens.create("after", [Scope.READ])
    use_all(used)
    for _ in range(2 * NUM_READERS):
        assert used.tokens.check(after.secret).name == "after"
        with pytest.raises(TokenRefusedError):
            used.tokens.check(before.secret)
    with open_history(f"sqlite:///{file}") as other:
        assert [each.name for each in other.tokens.list()] == ["after"]


def test_what_another_file_lacks_is_taken_from_the_records(
    used: History, file: Path, tmp_path: Path, home: Home
):
    home.run().event("submitted").steps(1)
    ingester = home.ingester(used)
    ingester.catch_up()
    assert ingester.catch_up() == frozenset()
    move(file, tmp_path / "away")
    open_history(f"sqlite:///{file}").close()
    assert ingester.catch_up() == {JOB_ID}
    assert used.jobs.get(JOB_ID).job.last_step == 1
    assert ingester.catch_up() == frozenset()


def test_a_copy_that_is_put_back_is_gone_on_with(used: History, file: Path, tmp_path: Path):
    """As from a backup, which has no log beside it."""
    early = used.tokens.create("early", [Scope.READ])
    with used.database.write() as connection:
        connection.exec_driver_sql("SELECT 1")
    used.close()  # so that all is in the file
    shutil.copy(file, tmp_path / "backup")
    late = used.tokens.create("late", [Scope.READ])
    move(file, tmp_path / "away")
    shutil.move(tmp_path / "backup", file)
    assert used.tokens.check(early.secret).name == "early"
    with pytest.raises(TokenRefusedError):
        used.tokens.check(late.secret)
