"""Both clients, over the real service."""

import gzip
import random

import httpx
import pytest

from tests.unit.client.conftest import JOB, Service
from trainflow.client import (
    AccessRefusedError,
    AsyncTrainFlowClient,
    JobConflictError,
    RequestRefusedError,
    ServiceUnavailableError,
    TrainFlowClient,
    UnknownJobError,
    UnknownLogError,
    UnknownTraceError,
    WaitedTooLongError,
)
from trainflow.computation.profile_order import ProfileTrace, trace_file
from trainflow.coordination import log_segments
from trainflow.coordination.log_segments import append_to_log
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError, UnreachableError
from trainflow.service import event_stream


class CountingClock:
    """Time passes while somebody sleeps, and only then."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    async def sleep_in_loop(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


@pytest.fixture
def client(service: Service, clock: CountingClock):
    with TrainFlowClient(service.url, service.token, clock=clock) as client:
        yield client


def test_a_jobs_life(client: TrainFlowClient, service: Service):
    job = client.submit(JOB)
    assert client.get(job.job_id).state == "pending"
    assert [each.job_id for each in client.list(name="tiny")] == [job.job_id]
    service.cluster.coordinators.add(job.job_id)
    assert client.stop(job.job_id).job_id == job.job_id
    with pytest.raises(JobConflictError) as conflict:
        client.resume(job.job_id)
    assert isinstance(conflict.value, ConflictError)
    assert conflict.value.problem.kind == "conflict"
    service.history.submissions.fail(job.job_id, 1, "lost")
    service.cluster.coordinators.clear()
    assert client.wait(job.job_id).reason == "lost"
    assert client.resume(job.job_id).attempt == 2
    assert [each.number for each in client.attempts(job.job_id)] == [1, 2]
    service.history.submissions.fail(job.job_id, 2, "lost")
    client.erase(job.job_id)
    with pytest.raises(UnknownJobError) as unknown:
        client.get(job.job_id)
    assert isinstance(unknown.value, JobNotFoundError)


def test_all_pages_are_listed(client: TrainFlowClient):
    made = {client.submit(JOB).job_id for _ in range(5)}
    assert {job.job_id for job in client.list(page=2, states=["pending"])} == made
    assert list(client.list(labels={"team": "a=b&c"})) == []


def test_a_wrong_configuration_is_refused_with_its_reasons(client: TrainFlowClient):
    with pytest.raises(RequestRefusedError, match="name: got 'No'") as refused:
        client.submit(JOB | {"name": "No"})
    assert isinstance(refused.value, ConfigError)
    assert [item["setting"] for item in refused.value.problem.errors] == ["name"]
    assert refused.value.exit_code == 2


def test_without_a_token_access_is_refused(service: Service):
    with TrainFlowClient(service.url) as client, pytest.raises(AccessRefusedError):
        client.cluster()


def test_a_service_that_is_not_there_is_told_after_some_tries(clock: CountingClock):
    with (
        TrainFlowClient("http://127.0.0.1:9", clock=clock) as client,
        pytest.raises(ServiceUnavailableError, match="got no answer at") as error,
    ):
        client.cluster()
    assert isinstance(error.value, UnreachableError)
    assert clock.now_s > 1


def test_a_job_that_goes_on_is_not_waited_for_for_ever(client: TrainFlowClient):
    job = client.submit(JOB)
    with pytest.raises(WaitedTooLongError, match="pending after 10 s"):
        client.wait(job.job_id, timeout_s=10)


def test_events_are_all_there_once_over_many_connections(client: TrainFlowClient, service: Service):
    run = service.record("tiny-abcdef")
    run.happen(600, "x" * 500)  # several streams of bounded length
    run.end()
    service.ingester.catch_up()
    expected = list(range(1, 603))
    assert [event.number for event in client.events(run.job_id)] == expected
    assert [event.number for event in client.events(run.job_id, follow=False)] == expected
    assert [event.number for event in client.events(run.job_id, after=600)] == [601, 602]


def test_events_come_from_the_first_on_where_the_service_has_lost_those_that_are_known(
    client: TrainFlowClient,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(event_stream, "CATCHES_UP_WITHIN_S", 0.0)
    run = service.record("tiny-abcdef")
    run.happen(2)
    run.end()
    service.ingester.catch_up()
    assert [event.number for event in client.events(run.job_id, after=57)] == [1, 2, 3, 4]
    assert "has lost the events that it told up to number 57" in caplog.text
    assert list(client.events(run.job_id, after=57, follow=False)) == []


def test_what_became_of_a_job_is_read(client: TrainFlowClient, service: Service):
    run = service.record("tiny-abcdef")
    run.train(range(1, 11))
    (run.directory / "driver.log").write_bytes(b"line\n" * 50_000)
    run.end()
    service.ingester.catch_up()
    points = client.metrics(run.job_id, since_step=7, names=["loss"])
    assert [point.last_step for point in points] == [8, 9, 10]
    assert client.checkpoints(run.job_id) == []
    assert client.workers(run.job_id).workers == []
    assert b"".join(client.logs(run.job_id)) == b"line\n" * 50_000
    assert b"".join(client.logs(run.job_id, offset=249_995, follow=True)) == b"line\n"
    assert client.cluster().total == {"CPU": 2.0}


def test_a_workers_log_is_read_on_where_its_beginning_is_gone(
    client: TrainFlowClient, service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES", 4)
    monkeypatch.setattr(log_segments, "NUM_SEGMENTS", 2)
    run = service.record("tiny-abcdef")
    for number in range(5):
        append_to_log(run.directory / "logs" / "slot0-1.0", f"line{number}\n".encode())
    run.end()
    service.ingester.catch_up()
    newest = b"line3\nline4\n"
    for follow in (False, True):
        pieces = list(client.log_pieces(run.job_id, worker="slot0-1.0", follow=follow))
        assert (pieces[0].begin, b"".join(piece.data for piece in pieces)) == (18, newest)
    assert b"".join(client.logs(run.job_id, worker="slot0-1.0", offset=24)) == b"line4\n"
    (log,) = client.worker_logs(run.job_id)
    assert (log.worker_id, log.begin, log.end) == ("slot0-1.0", 18, 30)
    with pytest.raises(UnknownLogError):
        list(client.logs(run.job_id, worker="slot1-1.0"))


def test_the_log_of_a_rank_stays_that_of_one_worker_while_it_is_followed(
    client: TrainFlowClient, service: Service
):
    run = service.record("tiny-abcdef")
    log = b"of the first\n" * 20_000  # several streams of bounded length
    append_to_log(run.directory / "logs" / "slot0-1.0", log)
    append_to_log(run.directory / "logs" / "slot1-1.0", b"of another\n" * 50_000)
    run.form("slot0-1.0")
    service.ingester.catch_up()
    pieces = client.log_pieces(run.job_id, worker="0", follow=True)
    begun = next(pieces)
    run.form("slot1-1.0")
    run.end()
    service.ingester.catch_up()
    found = [begun, *pieces]
    assert b"".join(piece.data for piece in found) == log
    assert {piece.worker for piece in found} == {"slot0-1.0"}
    assert next(client.logs(run.job_id, worker="0")).startswith(b"of another")


def test_a_log_that_is_silent_for_long_is_come_back_to_after_a_pause_each_time(
    client: TrainFlowClient,
    service: Service,
    clock: CountingClock,
    monkeypatch: pytest.MonkeyPatch,
):
    run = service.record("tiny-abcdef")
    log = run.directory / "driver.log"
    log.write_bytes(b"one\n")
    service.ingester.catch_up()
    pauses: list[float] = []

    def go_on_after_some(duration_s: float) -> None:
        pauses.append(duration_s)
        if len(pauses) == 6:  # more than a request is repeated that is not answered
            log.write_bytes(b"one\ntwo\n")
            run.end()
            service.ingester.catch_up()

    monkeypatch.setattr(clock, "sleep", go_on_after_some)
    assert b"".join(client.logs(run.job_id, follow=True)) == b"one\ntwo\n"
    assert set(pauses) == {0.5}


def with_trace(service: Service) -> bytes:
    """Have a job with a trace of several streams' length; returns it."""
    run = service.record("tiny-abcdef")
    ranks = [{"rank": 3, "worker": "slot3-1.3"}]
    run.record.add_event("profile", "", number=1, num_steps=5, first_step=8, ranks=ranks)
    path = run.directory / trace_file(1, 3)
    path.parent.mkdir(parents=True)
    data = random.Random(3).randbytes(150_000)
    path.write_bytes(data)
    run.record.add_report(ProfileTrace(1, 3, trace_file(1, 3), len(data), 8, 12))
    service.cluster.coordinators.add(run.job_id)
    service.ingester.catch_up()
    return data


def test_a_log_comes_as_it_is_through_a_proxy_that_compresses(clock: CountingClock):
    def answer(request: httpx.Request) -> httpx.Response:
        data = b"line\n"[int(request.url.params["offset"]) :]
        if "gzip" in request.headers["accept-encoding"]:
            headers = {"Content-Encoding": "gzip"}
            packed = httpx.ByteStream(gzip.compress(data))
            return httpx.Response(200, stream=packed, headers=headers)
        return httpx.Response(200, stream=httpx.ByteStream(data))

    transport = httpx.MockTransport(answer)
    with TrainFlowClient("http://service", clock=clock, transport=transport) as client:
        assert list(client.logs("tiny-abcdef")) == [b"line\n"]


def test_a_profile_is_asked_for_and_its_trace_is_fetched_whole(
    client: TrainFlowClient, service: Service
):
    data = with_trace(service)
    assert client.profile("tiny-abcdef", steps=3, ranks=[3]).num_steps == 3
    assert service.cluster.profiles == [("tiny-abcdef", 3, (3,))]
    (profile,) = client.profiles("tiny-abcdef")
    assert (profile.is_over, profile.traces[0].num_bytes) == (True, len(data))
    assert b"".join(client.trace("tiny-abcdef", 1, 3)) == data
    with pytest.raises(UnknownTraceError):
        list(client.trace("tiny-abcdef", 1, 4))


def test_an_empty_trace_is_nothing(client: TrainFlowClient, service: Service):
    with_trace(service)
    (service.record("tiny-abcdef").directory / trace_file(1, 3)).write_bytes(b"")
    assert list(client.trace("tiny-abcdef", 1, 3)) == []


@pytest.mark.anyio
async def test_the_asynchronous_client_profiles_too(service: Service, clock: CountingClock):
    data = with_trace(service)
    async with AsyncTrainFlowClient(
        service.url, service.token, clock=clock, sleep=clock.sleep_in_loop
    ) as client:
        assert (await client.profile("tiny-abcdef")).num_steps == 5
        (profile,) = await client.profiles("tiny-abcdef")
        assert profile.traces[0].state == "written"
        pieces = [piece async for piece in client.trace("tiny-abcdef", 1, 3)]
        assert b"".join(pieces) == data


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(service: Service, clock: CountingClock):
    run = service.record("tiny-abcdef")
    run.train(range(1, 4))
    run.happen(600, "x" * 500)
    (run.directory / "driver.log").write_bytes(b"line\n")
    run.end()
    service.ingester.catch_up()
    async with AsyncTrainFlowClient(
        service.url, service.token, clock=clock, sleep=clock.sleep_in_loop
    ) as client:
        numbers = [event.number async for event in client.events(run.job_id)]
        assert numbers == list(range(1, 603))
        late = [event.number async for event in client.events(run.job_id, after=601, follow=False)]
        assert late == [602]
        assert (await client.wait(run.job_id)).state == "succeeded"
        job = await client.submit(JOB)
        assert {each.job_id async for each in client.list(page=1)} == {run.job_id, job.job_id}
        with pytest.raises(WaitedTooLongError):
            await client.wait(job.job_id, timeout_s=5)
        assert [piece async for piece in client.logs(run.job_id)] == [b"line\n"]
        append_to_log(run.directory / "logs" / "slot0-1.0", b"hello\n")
        hello = [piece async for piece in client.logs(run.job_id, worker="slot0-1.0", offset=1)]
        assert hello == [b"ello\n"]
        assert [log.end for log in await client.worker_logs(run.job_id)] == [6]
        assert len(await client.metrics(run.job_id)) == 3
        assert await client.checkpoints(run.job_id) == []
        assert (await client.workers(run.job_id)).workers == []
        assert len(await client.attempts(job.job_id)) == 1
        assert (await client.cluster()).nodes == []
        service.cluster.coordinators.add(job.job_id)
        await client.stop(job.job_id)
        with pytest.raises(JobConflictError):
            await client.resume(job.job_id)
        with pytest.raises(JobConflictError):
            await client.erase(job.job_id)
    async with AsyncTrainFlowClient(
        "http://127.0.0.1:9", clock=clock, sleep=clock.sleep_in_loop
    ) as client:
        with pytest.raises(ServiceUnavailableError):
            await client.get("tiny-abcdef")


@pytest.mark.parametrize("client", [TrainFlowClient, AsyncTrainFlowClient])
def test_what_is_no_url_is_refused(client: type[TrainFlowClient] | type[AsyncTrainFlowClient]):
    with pytest.raises(ConfigError, match=r"url: got 'http://jobs:8000 x' .* expected that of"):
        client("http://jobs:8000 x")
