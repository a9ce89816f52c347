"""Attempts and the keys that make a request one, also if it comes twice at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.service.history.records import JOB_ID, HandClock, Home
from trainflow.config.masking import MASK
from trainflow.coordination.run_state import STOPPED, RunState
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError
from trainflow.service.history.history import History, open_history
from trainflow.service.history.records import AttemptState, Claim, Submission
from trainflow.service.history.submissions import KEYS_KEPT_S

SUBMISSION = Submission(JOB_ID, "tiny", {"name": "tiny", "labels": {"team": "a"}}, "/runs/tiny")


def test_a_key_stands_for_the_first_job(history: History):
    assert history.submissions.claim("key", "print", "job-1") == Claim("job-1", is_new=True)
    assert history.submissions.claim("key", "print", "job-2") == Claim("job-1", is_new=False)


def test_a_key_with_another_request_is_a_conflict(history: History):
    history.submissions.claim("key", "print", "job-1")
    with pytest.raises(ConflictError, match=r"'key', which stands for another request.*job-1"):
        history.submissions.claim("key", "other", "job-2")


def test_keys_of_others_are_others(history: History):
    history.submissions.claim("key", "print", "job-1", owner="a")
    assert history.submissions.claim("key", "other", "job-2", owner="b").is_new


def test_of_many_claims_at_once_one_is_new(history: History):
    def claim(number: int) -> Claim:
        return history.submissions.claim("key", "print", f"job-{number}")

    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(claim, range(16)))
    assert sum(each.is_new for each in claims) == 1
    assert len({each.job_id for each in claims}) == 1


def test_a_key_is_forgotten_after_a_week_and_when_it_is_released(
    history: History, clock: HandClock
):
    history.submissions.claim("key", "print", "job-1")
    clock.now_s += KEYS_KEPT_S
    assert not history.submissions.claim("key", "print", "job-2").is_new
    clock.now_s += 1
    assert history.submissions.claim("key", "other", "job-3").is_new
    history.submissions.release("key")
    assert history.submissions.claim("key", "print", "job-4").is_new


def test_what_a_key_stands_for_is_found_without_a_claim(history: History, clock: HandClock):
    find = history.submissions.find_claimed
    assert find("key", "print", owner="a") is None
    history.submissions.claim("key", "print", "job-1", owner="a")
    assert find("key", "print", owner="a") == "job-1"
    assert find("key", "print", owner="b") is None
    assert find("key", "other", owner="a") is None
    clock.now_s += KEYS_KEPT_S + 1
    assert find("key", "print", owner="a") is None


@pytest.mark.parametrize("key", ["", "a" * 256, "a\nb", "é", "a\0"])
def test_a_key_of_another_form_is_refused(history: History, key: str):
    with pytest.raises(ConfigError, match="Idempotency-Key: got"):
        history.submissions.claim(key, "print", "job-1")


def test_a_submission_is_pending_until_its_coordinator_tells(history: History, home: Home):
    attempt = history.submissions.begin(SUBMISSION)
    assert (attempt.number, attempt.submission_id) == (1, f"{JOB_ID}-a1")
    assert history.jobs.get(JOB_ID).job.state is RunState.PENDING
    run = home.run().keep_job(labels={"team": "a"})
    run.event("submitted").event("epoch").publish("running")
    home.take(history)
    found = history.jobs.get(JOB_ID).job
    assert (found.state, found.attempt, found.created_at_s) == (RunState.RUNNING, 1, 1000.0)
    (begun,) = history.jobs.attempts(JOB_ID)
    assert (begun.submission_id, begun.started_at_s) == (f"{JOB_ID}-a1", 1001.0)


def test_values_of_environment_variables_are_not_kept(history: History):
    config = {"name": "tiny", "runtime_env": {"env_vars": {"TOKEN": "s3cret"}}}
    history.submissions.begin(Submission(JOB_ID, "tiny", config, "/runs/tiny"))
    kept = history.jobs.get(JOB_ID).job.config
    assert kept["runtime_env"] == {"env_vars": {"TOKEN": MASK}}


def test_a_job_that_goes_on_is_not_begun_again(history: History):
    history.submissions.begin(SUBMISSION)
    with pytest.raises(ConflictError, match="which is pending, expected one that has finished"):
        history.submissions.begin(SUBMISSION)
    assert len(history.jobs.attempts(JOB_ID)) == 1


def test_a_finished_job_is_resumed_as_another_attempt(
    history: History, home: Home, clock: HandClock
):
    run = home.run().keep_job().event("submitted").steps(1).publish("running").end(STOPPED)
    home.take(history)
    clock.now_s = run.clock.now_s + 10
    attempt = history.submissions.begin(SUBMISSION)
    assert (attempt.number, attempt.submission_id) == (2, f"{JOB_ID}-a2")

    def stand() -> tuple[RunState, int | None, float | None]:
        job = history.jobs.get(JOB_ID).job
        return job.state, job.exit_code, job.ended_at_s

    assert stand() == (RunState.PENDING, None, None)
    run.event("drained")  # the last attempt's, heard of late
    home.take(history)
    assert stand() == (RunState.PENDING, None, None)
    run.clock.now_s = clock.now_s
    run.event("submitted").event("epoch")
    home.take(history)
    assert stand() == (RunState.RUNNING, None, None)
    first, second = history.jobs.attempts(JOB_ID)
    assert (first.state, first.exit_code, first.submission_id) == (RunState.STOPPED, 7, None)
    assert (second.state, second.started_at_s) == (None, clock.now_s + 1)


def test_an_attempt_goes_on_although_the_clock_went_back(history: History, home: Home):
    run = home.run().keep_job().event("submitted").end(STOPPED)
    ingester = home.ingester(history)
    ingester.catch_up()
    (run.directory / "result.json").unlink()
    run.clock.now_s -= 500
    run.event("attempt", attempt=2).event("epoch")
    ingester.catch_up()
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.attempt, job.exit_code) == (RunState.RUNNING, 2, None)


def test_a_job_whose_head_died_is_taken_over(history: History, home: Home, clock: HandClock):
    run = home.run().keep_job().event("submitted").event("epoch").publish("running")
    home.take(history)
    clock.now_s = run.clock.now_s + 100
    (job,) = history.jobs.unfinished()
    with pytest.raises(ConflictError):
        history.submissions.begin(SUBMISSION)
    attempt = history.submissions.begin(SUBMISSION, takes_over=1)
    assert (job.attempt, attempt.number) == (1, 2)
    with pytest.raises(ConflictError, match="of which attempt 2 has been begun, expected 1"):
        history.submissions.begin(SUBMISSION, takes_over=1)
    assert history.jobs.get(JOB_ID).job.state is RunState.PENDING


def test_an_attempt_that_is_taken_over_was_lost_when_it_was_last_heard_of(
    history: History, home: Home, tmp_path: Path
):
    run = home.run().keep_job().event("submitted").event("epoch").publish()
    home.take(history)
    heard_at_s = run.clock.now_s
    history.submissions.begin(SUBMISSION, takes_over=1)
    (lost, _) = history.jobs.attempts(JOB_ID)
    assert (lost.state, lost.ended_at_s, lost.exit_code) == ("lost", heard_at_s, None)
    run.clock.now_s += 500
    run.event("resuming")  # which the service writes
    run.again().record.begin_attempt(2)
    home.take(history)
    assert history.jobs.attempts(JOB_ID)[0] == lost
    with open_history(f"sqlite:///{tmp_path}/anew.db") as anew:
        home.take(anew)
        assert anew.jobs.attempts(JOB_ID)[0] == lost


def test_an_attempt_of_an_earlier_release_is_lost_too(history: History, home: Home):
    """Such a release does not say, as an attempt begins, what became of the one before."""
    run = home.run().keep_job().event("submitted").event("epoch").publish()
    heard_at_s = run.clock.now_s
    home.take(history)
    run.clock.now_s += 500
    run.event("resuming").event("attempt", attempt=2)
    home.take(history)
    (lost, _) = history.jobs.attempts(JOB_ID)
    assert (lost.state, lost.ended_at_s) == ("lost", heard_at_s)


def test_an_attempt_that_has_ended_by_its_result_alone_keeps_that_end(history: History, home: Home):
    run = home.run().keep_job().event("submitted")
    run.record.write_ending(JOB_ID, STOPPED)
    home.take(history)
    history.submissions.begin(SUBMISSION)
    (first, _) = history.jobs.attempts(JOB_ID)
    assert (first.state, first.exit_code, first.ended_at_s) == ("stopped", 7, run.clock.now_s)
    run.again().record.begin_attempt(2)
    home.take(history)
    assert history.jobs.attempts(JOB_ID)[0] == first


def test_an_erased_job_is_not_begun_again(history: History):
    history.submissions.begin(SUBMISSION)
    history.submissions.fail(JOB_ID, 1, "no room")
    history.jobs.erase(JOB_ID)
    with pytest.raises(ConflictError, match="which was erased"):
        history.submissions.begin(SUBMISSION)
    with pytest.raises(JobNotFoundError):
        history.jobs.get(JOB_ID)


def test_an_attempt_that_comes_to_nothing_fails_the_job(history: History, clock: HandClock):
    history.submissions.begin(SUBMISSION)
    clock.now_s += 5
    history.submissions.fail(JOB_ID, 1, "no cluster answers", 5)
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.exit_code, job.reason, job.ended_at_s) == (
        RunState.FAILED,
        5,
        "no cluster answers",
        1005.0,
    )
    assert history.jobs.attempts(JOB_ID)[0].state is AttemptState.FAILED
    assert history.submissions.begin(SUBMISSION).number == 2


def test_an_attempt_that_has_begun_is_not_failed_from_outside(history: History, home: Home):
    history.submissions.begin(SUBMISSION)
    home.run().keep_job().event("submitted").event("epoch")
    home.take(history)
    history.submissions.fail(JOB_ID, 1, "the submission was lost")
    assert history.jobs.get(JOB_ID).job.state is RunState.RUNNING
    with pytest.raises(JobNotFoundError, match="attempt: got 2"):
        history.submissions.fail(JOB_ID, 2, "none")


def test_of_many_who_begin_a_job_at_once_one_does(history: History):
    def begin(_: int) -> bool:
        try:
            history.submissions.begin(SUBMISSION)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(8))) == 1
    assert len(history.jobs.attempts(JOB_ID)) == 1


def test_a_failed_submission_stays_failed_when_its_folder_is_read(
    history: History, home: Home, clock: HandClock
):
    """A coordinator began, wrote what it was to run, and nothing else."""
    history.submissions.begin(SUBMISSION)
    history.submissions.fail(JOB_ID, 1, "no room", 8)
    home.run().keep_job()
    home.take(history)
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.exit_code, job.reason) == (RunState.FAILED, 8, "no room")
