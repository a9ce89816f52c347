"""Opening a database: of which kind, by whom at once, and of which release."""

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from tests.full_disk import room_for
from tests.testbed.postgres_server import PostgresServer
from tests.unit.service.history.conftest import MakeUrl
from tests.unit.service.history.records import JOB_ID, HandClock, Home
from trainflow.errors import ConfigError, HistoryError
from trainflow.service.history import database as module
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.jobs import lock_job
from trainflow.service.history.records import Scope, Submission
from trainflow.service.history.run_import import import_run
from trainflow.service.history.schema import metadata

ROOT = Path(__file__).parents[4]
NUM_WRITERS = 40  # many more than there are connections
WITHIN_S = 10.0  # less than a writer waits


def test_the_migrations_make_the_tables_that_the_code_expects(history: History):
    with history.database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_history_lasts(url: str):
    with open_history(url) as history:
        secret = history.tokens.create("ci", [Scope.READ]).secret
    with open_history(url) as history:
        assert history.tokens.check(secret).name == "ci"


def test_a_file_and_what_is_beside_it_are_their_owner_s_alone(tmp_path: Path):
    path = tmp_path / "new" / "history.db"
    with open_history(f"sqlite:///{path}") as history:
        history.check()
        files = sorted(path.parent.iterdir())
        assert len(files) > 1, "there is a log of what is written"
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_the_mode_that_a_file_was_given_stays(tmp_path: Path):
    path = tmp_path / "history.db"
    open_history(f"sqlite:///{path}").close()
    path.chmod(0o640)
    open_history(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o640


def test_many_open_a_new_database_at_once(url: str):
    def open_one(_: int) -> None:
        with open_history(url) as history:
            history.check()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_one, range(6)))


def test_processes_open_a_new_database_at_once(url: str):
    program = (
        "import sys; from trainflow.service.history.history import open_history; "
        "open_history(sys.argv[1]).close()"
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    opening = [
        subprocess.Popen(
            [sys.executable, "-c", program, url], cwd=ROOT, env=environment, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in opening:
        _, told = process.communicate(timeout=120)
        assert (process.returncode, told) == (0, b"")


def test_a_new_file_that_another_process_is_making_is_waited_for(tmp_path: Path):
    path = tmp_path / "history.db"
    maker = sqlite3.connect(path, isolation_level=None)
    maker.execute("BEGIN IMMEDIATE")  # SQLite then fails who wants another journal, without a wait
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_history, f"sqlite:///{path}")
        assert not wait([opening], timeout=0.3).done
        maker.execute("ROLLBACK")
        maker.close()
        with opening.result() as history:
            assert history.jobs.list().jobs == ()


def test_a_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("power")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", fail)
        with pytest.raises(RuntimeError, match="power"):
            open_history(url)
    with open_history(url) as history:
        assert history.jobs.list().jobs == ()


def test_a_database_of_the_first_release_learns_who_had_which_rank(url: str, home: Home):
    run = home.run().event("epoch", members=["a", "b", "c"]).event("epoch", members=["d", "b"])
    home.run("other-abcdef").event("epoch", members=["e"])
    home.run("young-abcdef").event("submitted")
    with open_history(url) as history:
        home.take(history)
        with history.database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN ranks")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    with open_history(url) as upgraded:
        assert upgraded.jobs.get(JOB_ID).ranks == ("d", "b", "c")
        assert upgraded.jobs.get("other-abcdef").ranks == ("e",)
        assert upgraded.jobs.get("young-abcdef").ranks == ()
        run.event("epoch", members=["f"])
        home.take(upgraded)
        assert upgraded.jobs.get(JOB_ID).ranks == ("f", "b", "c")


def test_a_database_of_a_newer_release_is_refused_and_left_as_it_is(url: str):
    with open_history(url) as history, history.database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(HistoryError, match="got one of revision 9999, expected at most 0002"):
        open_history(url)


def test_what_raises_inside_a_transaction_is_undone(history: History):
    def change() -> None:
        with history.database.write() as connection:
            connection.exec_driver_sql("DELETE FROM tokens")
            raise KeyError("a")

    history.tokens.create("ci", [Scope.READ])
    with pytest.raises(KeyError):
        change()
    assert len(history.tokens.list()) == 1


def test_two_ingesters_at_once_come_to_one_history(history: History, home: Home):
    run = home.run().keep_job().event("submitted")
    run.steps(*range(1, 60))
    ingesters = [home.ingester(history, slice_bytes=2000) for _ in range(2)]
    begin = threading.Barrier(2)

    def take(ingester: Ingester) -> None:
        begin.wait()
        ingester.catch_up()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, ingesters))
    assert [point.last_step for point in history.series.since(JOB_ID)] == [*range(1, 60)]
    assert len(history.events.after(JOB_ID)) == 1


def test_a_reader_sees_all_of_a_pass_or_nothing(history: History, home: Home):
    home.run().keep_job().event("submitted").steps(1)
    seen: list[int] = []
    with history.database.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO erased_jobs (job_id, directory, erased_at_s) VALUES ('a', '/', 1.0)"
        )
        with history.database.read() as reader:
            seen.append(reader.exec_driver_sql("SELECT count(*) FROM erased_jobs").scalar_one())
    with history.database.read() as reader:
        seen.append(reader.exec_driver_sql("SELECT count(*) FROM erased_jobs").scalar_one())
    assert seen == [0, 1]


def test_who_reads_is_answered_while_many_wait_to_write(url: str, home: Home):
    home.run().keep_job().event("submitted")
    begun = threading.Semaphore(0)
    with open_history(url) as history, open_history(url) as other:
        home.take(history)
        secret = history.tokens.create("ci", [Scope.READ]).secret

        def write() -> None:
            begun.release()
            with history.database.write() as connection:
                assert lock_job(connection, JOB_ID) is not None

        def read() -> None:
            for _ in range(NUM_WRITERS):
                assert history.jobs.get(JOB_ID).job.job_id == JOB_ID
                assert history.tokens.check(secret).name == "ci"

        with ThreadPoolExecutor(NUM_WRITERS + 1) as pool:
            with other.database.write() as connection:
                assert lock_job(connection, JOB_ID) is not None
                writing = [pool.submit(write) for _ in range(NUM_WRITERS)]
                for _ in writing:
                    assert begun.acquire(timeout=WITHIN_S)
                pool.submit(read).result(WITHIN_S)
                assert not any(each.done() for each in writing)
            for each in writing:
                each.result()


@pytest.mark.parametrize(
    "url",
    ["mysql://host/name", "history.db", "", "sqlite://", "sqlite:///:memory:", "sqlite:///a?b=c"],
)
def test_another_kind_of_database_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRAINFLOW_DATABASE_URL", raising=False)
    with pytest.raises(ConfigError, match="TRAINFLOW_DATABASE_URL: got"):
        module.open_database(url)


def test_without_a_url_it_is_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRAINFLOW_DATABASE_URL", raising=False)
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    open_history().close()
    assert (tmp_path / "home" / "history.db").is_file()
    monkeypatch.setenv("TRAINFLOW_DATABASE_URL", f"sqlite:///{tmp_path / 'other.db'}")
    open_history().close()
    assert (tmp_path / "other.db").is_file()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="whose folder can't be made"):
        open_history(f"sqlite:///{tmp_path / 'file' / 'history.db'}")


def test_what_is_no_database_is_told(tmp_path: Path):
    (tmp_path / "history.db").write_text("this is no database" * 100)
    with pytest.raises(HistoryError, match="expected it to answer and to have room"):
        open_history(f"sqlite:///{tmp_path / 'history.db'}")


def test_a_missing_driver_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'trainflow\[service,postgres\]'"):
        open_history("postgresql://user:s3cret@host/name")


def test_a_password_is_not_told(tmp_path: Path):
    with pytest.raises(HistoryError) as refused:
        open_history(f"postgresql://user:s3cret@/name?host={tmp_path}")
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError) as unknown:
        open_history("mysql://user:s3cret@host/name")
    assert "s3cret" not in str(unknown.value)


def test_what_can_be_read_again_is_not_flushed(tmp_path: Path):
    with open_history(f"sqlite:///{tmp_path / 'history.db'}") as history:
        told: list[int] = []
        for can_be_repeated in (True, False):
            with history.database.write(can_be_repeated=can_be_repeated) as connection:
                told.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
    assert told == [1, 2]  # NORMAL, FULL


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, home: Home):
    """Nothing of the pass is there, and all of it once there is room again."""
    path, clock = tmp_path / "history.db", HandClock()
    with open_history(f"sqlite:///{path}") as history:
        run = home.run().keep_job().event("submitted")
        ingester = home.ingester(history, clock)
        ingester.catch_up()
        run.steps(*range(1, 2000))
        with room_for(5000):
            ingester.catch_up()
            with pytest.raises(HistoryError, match="expected it to answer and to have room"):
                import_run(history.database, run.directory)
        assert history.series.since(JOB_ID) == ()
        clock.now_s += 60
        ingester.catch_up()
        assert history.jobs.get(JOB_ID).job.last_step == 1999


def test_opening_what_is_up_to_date_waits_for_no_writer(url: str):
    with open_history(url) as history, history.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM tokens")
        open_history(url).close()


def test_sqlite_is_set_up_for_several_processes(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'history.db'}"
    with open_history(url) as history, history.database.read() as connection:
        told = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert told == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 15_000}


@pytest.mark.storage
def test_a_server_that_crashes_is_gone_on_with(postgres: PostgresServer, home: Home):
    with open_history(postgres.make_database(f"crashing-{uuid4().hex[:6]}")) as history:
        run = home.run().keep_job().event("submitted").steps(1)
        ingester = home.ingester(history)
        ingester.catch_up()
        run.steps(2)
        postgres.kill()
        with pytest.raises(HistoryError, match="expected it to answer"):
            ingester.poll()
        with pytest.raises(HistoryError):
            history.check()
        postgres.start()
        ingester.catch_up()
        assert [point.last_step for point in history.series.since(JOB_ID)] == [1, 2]


def test_a_history_moves_to_another_database_by_reading_the_records_again(
    make_url: MakeUrl, home: Home
):
    """Tokens and submissions are made anew; what runs have recorded is there."""
    home.run().keep_job().event("submitted").steps(1, 2)
    with open_history(make_url()) as old, open_history(make_url()) as new:
        home.take(old)
        home.take(new)
        assert old.jobs.list() == new.jobs.list()
        old.submissions.begin(Submission("other-1", "other", {}, "/runs/other-1"))
        assert len(new.jobs.list().jobs) == 1


def test_who_closes_it_waits_for_those_who_still_read(url: str):
    history = open_history(url)
    begun, may_end = threading.Event(), threading.Event()

    def read() -> None:
        with history.database.read():
            begun.set()
            assert may_end.wait(30)

    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(read)
        assert begun.wait(30)
        closing = pool.submit(history.close)
        try:
            with pytest.raises(TimeoutError):
                closing.result(timeout=0.1)
        finally:
            may_end.set()
        reading.result()
        closing.result()
