"""Listing, finding and erasing jobs."""

import random
from collections.abc import Iterator

import pytest

from tests.unit.service.history.records import JOB_ID, HandClock, Home
from trainflow.coordination.run_state import STOPPED, RunState
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError
from trainflow.service.history.history import History
from trainflow.service.history.jobs import MAX_LISTED
from trainflow.service.history.records import JobFilter, JobHead, Submission


def submit(history: History, job_id: str, **labels: str) -> None:
    name = job_id.rpartition("-")[0]
    config = {"name": name, "labels": labels}
    history.submissions.begin(Submission(job_id, name, config, f"/runs/{job_id}"))


def pages_of(history: History, limit: int, wanted: JobFilter | None = None) -> Iterator[list[str]]:
    cursor: str | None = None
    while True:
        page = history.jobs.list(wanted, limit=limit, cursor=cursor)
        yield [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            return


def test_jobs_come_the_newest_first(history: History, clock: HandClock):
    for number in range(3):
        clock.now_s += 1
        submit(history, f"job-{number}")
    assert list(pages_of(history, 100)) == [["job-2", "job-1", "job-0"]]
    assert list(pages_of(history, 2)) == [["job-2", "job-1"], ["job-0"]]
    assert list(pages_of(history, 3)) == [["job-2", "job-1", "job-0"]]


def test_jobs_of_one_moment_are_in_some_order_too(history: History):
    made = {f"job-{number}" for number in range(7)}
    for job_id in made:
        submit(history, job_id)
    listed = [job_id for page in pages_of(history, 2) for job_id in page]
    assert len(listed) == 7
    assert set(listed) == made


def test_pages_neither_repeat_nor_skip_while_jobs_are_added(history: History, clock: HandClock):
    draws = random.Random(0)
    made: list[str] = []
    for number in range(20):
        clock.now_s += draws.choice([0, 1])
        made.append(f"job-{number}")
        submit(history, made[-1])
    listed: list[str] = []
    for number, page in enumerate(pages_of(history, 3)):
        listed += page
        clock.now_s += draws.choice([0, 1])
        submit(history, f"late-{number}")
    assert len(listed) == len(set(listed))
    assert set(made) <= set(listed)


def test_jobs_are_found_by_state_name_and_labels(history: History, clock: HandClock):
    submit(history, "red-1", team="a", kind="x")
    submit(history, "red-2", team="a")
    submit(history, "blue-3", team="b", kind="x")
    history.submissions.fail("red-2", 1, "no room", 8)

    def found(wanted: JobFilter) -> set[str]:
        return {job.job_id for job in history.jobs.list(wanted).jobs}

    assert found(JobFilter(name="red")) == {"red-1", "red-2"}
    assert found(JobFilter(name="re\0d")) == set()
    assert found(JobFilter(states=frozenset({RunState.FAILED}))) == {"red-2"}
    both = frozenset({RunState.FAILED, RunState.PENDING})
    assert found(JobFilter(states=both)) == {"red-1", "red-2", "blue-3"}
    assert found(JobFilter(labels={"team": "a"})) == {"red-1", "red-2"}
    assert found(JobFilter(labels={"team": "a", "kind": "x"})) == {"red-1"}
    assert found(JobFilter(labels={"team": "ab"})) == set()
    assert found(JobFilter(labels={"tea": "ma"})) == set()
    assert found(JobFilter(name="red", labels={"kind": "x"})) == {"red-1"}


@pytest.mark.parametrize("limit", [0, -1, MAX_LISTED + 1])
def test_a_wrong_limit_is_refused(history: History, limit: int):
    with pytest.raises(ConfigError, match="limit: got"):
        history.jobs.list(limit=limit)


@pytest.mark.parametrize("job_id", ["none", "", "a" * 1000, "'; DROP TABLE jobs", "é"])
def test_an_unknown_job_is_told(history: History, job_id: str):
    asked = [
        history.jobs.get,
        history.jobs.attempts,
        history.jobs.erase,
        history.events.after,
        history.series.since,
        history.checkpoints.of,
    ]
    for ask in asked:
        with pytest.raises(JobNotFoundError, match="expected the id of a job in the history"):
            ask(job_id)


def test_heads_tell_how_far_jobs_go(history: History, home: Home):
    home.run().keep_job().event("submitted").steps(1, 2).publish("running")
    home.take(history)
    home.run("ended-abcdef").event("submitted").end(STOPPED)
    home.take(history)
    submit(history, "other-1")
    heads = history.jobs.heads([JOB_ID, "other-1", "ended-abcdef", "none"])
    assert heads == {
        JOB_ID: JobHead(RunState.RUNNING, None, 1, 2, 1002.0),
        "other-1": JobHead(RunState.PENDING, None, 0, 0, None),
        "ended-abcdef": JobHead(RunState.STOPPED, 1002.0, 2, 0, None),
    }
    assert history.jobs.heads([]) == {}


def test_a_job_that_was_submitted_waits_with_no_status(history: History):
    submit(history, "job-1")
    found = history.jobs.get("job-1")
    assert (found.job.state, found.status, found.workers, found.stale_s) == (
        RunState.PENDING,
        None,
        (),
        None,
    )


def test_a_finished_job_is_erased_and_not_read_in_again(history: History, home: Home):
    run = home.run().keep_job().event("submitted").steps(1).end(STOPPED)
    home.take(history)
    history.submissions.claim("key", "print", JOB_ID)
    assert history.jobs.erase(JOB_ID) == str(run.directory)
    with pytest.raises(JobNotFoundError):
        history.jobs.get(JOB_ID)
    run.event("epoch")
    assert home.take(history) == frozenset()
    assert history.jobs.list().jobs == ()
    assert history.submissions.claim("key", "other", "job-2").is_new
    with history.database.read() as connection:
        for table in ("events", "points", "attempts", "sources", "job_labels"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


def test_an_ingester_that_knew_an_erased_job_leaves_it(history: History, home: Home):
    run = home.run().keep_job().event("submitted").end(STOPPED)
    ingester = home.ingester(history)
    ingester.catch_up()
    history.jobs.erase(JOB_ID)
    run.event("epoch").keep_job()
    (run.directory / "new").write_text("")
    ingester.catch_up()
    assert history.jobs.list().jobs == ()


def test_a_job_that_goes_on_is_not_erased(history: History, home: Home):
    home.run().event("submitted").event("epoch")
    home.take(history)
    with pytest.raises(ConflictError, match="which is running, expected one that has finished"):
        history.jobs.erase(JOB_ID)
    assert history.jobs.get(JOB_ID).job.state is RunState.RUNNING


def test_the_workers_of_a_finished_job_are_gone(history: History, home: Home):
    run = home.run().event("submitted").publish("running")
    home.take(history)
    assert len(history.jobs.get(JOB_ID).workers) == 1
    run.end(STOPPED)
    home.take(history)
    found = history.jobs.get(JOB_ID)
    assert found.workers == ()
    assert found.status is not None


def test_how_old_the_last_status_was_at_its_end_a_finished_job_tells(
    history: History, home: Home, clock: HandClock
):
    run = home.run().event("submitted").publish("running")
    run.clock.now_s += 40
    run.end(STOPPED)
    home.take(history)
    clock.now_s = run.clock.now_s + 3600
    assert history.jobs.get(JOB_ID).stale_s == 41.0
    run.publish("stopped")
    home.take(history)
    assert history.jobs.get(JOB_ID).stale_s == 0.0
