"""Profiles over HTTP: asked of the cluster, told from the history, read from the run's folder."""

from typing import Any

import pytest

from tests.unit.service.conftest import Client, OpenClient
from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.runs import RecordedRun
from trainflow.computation.profile_order import ProfileFailed, ProfileTrace, trace_file
from trainflow.coordination.run_state import RunState
from trainflow.errors import ConfigError, ConflictError, UnreachableError
from trainflow.service.documents import GREATEST
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Scope

pytestmark = pytest.mark.anyio

JOB = "/v1/jobs/tiny-abcdef"
ASKED: dict[str, Any] = {
    "number": 1,
    "num_steps": 5,
    "first_step": 8,
    "ranks": [{"rank": 0, "worker": "slot0-1.0"}, {"rank": 3, "worker": "slot3-1.3"}],
}


@pytest.fixture
def ingester(history: History, clock: FakeClock) -> Ingester:
    return Ingester(history.database, clock=clock)


@pytest.fixture
def run(home: Any, ingester: Ingester, cluster: FakeCluster) -> RecordedRun:
    run = RecordedRun("tiny-abcdef")
    ingester.catch_up()
    cluster.coordinators.add("tiny-abcdef")
    return run


async def ask(client: Client, **body: Any) -> Any:
    return await client.post(f"{JOB}/profiles", json=body)


@pytest.mark.usefixtures("run")
async def test_a_profile_is_asked_of_the_job(open_client: OpenClient, cluster: FakeCluster):
    async with open_client() as client:
        answer = await ask(client, steps=3, ranks=[3, 0])
        assert answer.status_code == 202, answer.text
        found = answer.json()
        assert (found["number"], found["num_steps"], found["first_step"]) == (1, 3, 8)
        assert [each["rank"] for each in found["traces"]] == [3, 0]
        assert not found["is_over"]
        assert (await ask(client)).json()["num_steps"] == 5
    assert cluster.profiles == [("tiny-abcdef", 3, (3, 0)), ("tiny-abcdef", 5, (0,))]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("body", "setting"),
    [
        ({"steps": 0}, "body.steps"),
        ({"steps": 51}, "body.steps"),
        ({"steps": True}, "body.steps"),
        ({"ranks": []}, "body.ranks"),
        ({"ranks": list(range(17))}, "body.ranks"),
        ({"ranks": [-1]}, "body.ranks.0"),
        ({"rank": 1}, "body.rank"),
    ],
)
async def test_a_wrong_request_is_refused(
    open_client: OpenClient, cluster: FakeCluster, body: dict[str, Any], setting: str
):
    async with open_client() as client:
        answer = await ask(client, **body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["setting"] == setting
    assert cluster.profiles == []


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("ranks", "expected"), [([], "1 or more of them"), ([*range(17)], "16 of them at most")]
)
async def test_a_wrong_number_of_ranks_is_told_with_the_right_one(
    open_client: OpenClient, ranks: list[int], expected: str
):
    async with open_client() as client:
        answer = await ask(client, ranks=ranks)
    assert answer.json()["errors"][0]["expected"] == expected


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ConfigError("ranks: got 4"), 422, "invalid-request"),
        (ConflictError("it recovers"), 409, "conflict"),
        (UnreachableError("it restarts"), 503, "cluster-unreachable"),
    ],
)
async def test_what_the_job_answers_is_told(
    open_client: OpenClient, cluster: FakeCluster, error: Exception, status: int, kind: str
):
    cluster.error = error
    async with open_client() as client:
        answer = await ask(client)
    assert answer.status_code == status
    assert answer.json()["type"].endswith(f":{kind}")
    assert str(error) in answer.json()["detail"]


async def test_a_job_that_does_not_train_is_a_conflict(
    open_client: OpenClient, cluster: FakeCluster, run: RecordedRun, ingester: Ingester
):
    cluster.coordinators.clear()
    async with open_client() as client:
        answer = await ask(client)
        assert answer.status_code == 409
        assert "has no coordinator" in answer.json()["detail"]
        cluster.coordinators.add("tiny-abcdef")
        run.end(RunState.STOPPED)
        ingester.catch_up()
        assert (await ask(client)).status_code == 409
        assert (await client.post("/v1/jobs/absent/profiles", json={})).status_code == 404
    assert cluster.profiles == []


async def test_what_became_of_profiles_is_told_from_events(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    async with open_client() as client:
        assert (await client.get(f"{JOB}/profiles")).json() == {"profiles": []}
        run.happen(3)
        run.record.add_event("profile", "asked", **ASKED)
        written = ProfileTrace(1, 3, trace_file(1, 3), 7, 8, 12)
        run.record.add_report(written)
        ingester.catch_up()
        (profile,) = (await client.get(f"{JOB}/profiles")).json()["profiles"]
        assert [each["state"] for each in profile["traces"]] == ["awaited", "written"]
        assert profile["traces"][1]["file"] == "profiles/1/rank-3.json.gz"
        run.record.add_report(ProfileFailed(1, 0, "it raised"))
        ingester.catch_up()
        (profile,) = (await client.get(f"{JOB}/profiles")).json()["profiles"]
        assert profile["is_over"]
        assert profile["traces"][0]["trouble"] == "it raised"
        assert (await client.get("/v1/jobs/absent/profiles")).status_code == 404


async def test_a_trace_is_read_from_any_byte(open_client: OpenClient, run: RecordedRun):
    path = run.directory / trace_file(1, 3)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")
    async with open_client() as client:
        answer = await client.get(f"{JOB}/profiles/1/ranks/3")
        assert (answer.status_code, answer.content) == (200, b"0123456789")
        assert answer.headers["content-type"] == "application/gzip"
        assert answer.headers["trace-bytes"] == "10"
        rest = await client.get(f"{JOB}/profiles/1/ranks/3?offset=7")
        assert (rest.content, rest.headers["trace-bytes"]) == (b"789", "10")
        for offset in (10, 2**44 - 1, GREATEST):
            past = await client.get(f"{JOB}/profiles/1/ranks/3?offset={offset}")
            assert (past.status_code, past.content) == (200, b"")
        beyond = await client.get(f"{JOB}/profiles/1/ranks/3?offset={GREATEST + 1}")
        assert beyond.status_code == 422


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (f"{JOB}/profiles/1/ranks/3", 404, "trace-not-found"),
        ("/v1/jobs/absent/profiles/1/ranks/3", 404, "job-not-found"),
        (f"{JOB}/profiles/0/ranks/3", 422, "invalid-request"),
        (f"{JOB}/profiles/1/ranks/..", 404, "not-found"),
    ],
)
async def test_what_is_not_there_is_told(
    open_client: OpenClient, path: str, status: int, kind: str
):
    async with open_client() as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert answer.json()["type"].endswith(f":{kind}")


async def test_to_ask_needs_a_token_that_may_submit(
    open_client: OpenClient, history: History, run: RecordedRun
):
    secret = history.tokens.create("reader", frozenset({Scope.READ})).secret
    headers = {"Authorization": f"Bearer {secret}"}
    async with open_client(authentication="tokens") as client:
        asked = await client.post(f"{JOB}/profiles", json={}, headers=headers)
        assert asked.status_code == 403
        assert (await client.get(f"{JOB}/profiles", headers=headers)).status_code == 200
