"""What has become of a job, from what its coordinator has written."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.conftest import Client, OpenClient
from tests.unit.service.fakes import FakeClock
from tests.unit.service.runs import RecordedRun
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import log_segments
from trainflow.coordination.log_segments import append_to_log
from trainflow.coordination.run_state import RunState
from trainflow.service.documents import GREATEST
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.problems import ProblemType

pytestmark = pytest.mark.anyio

JOB = "/v1/jobs/tiny-abcdef"


@pytest.fixture
def ingester(history: History, clock: FakeClock) -> Ingester:
    return Ingester(history.database, clock=clock)


@pytest.fixture
def run(home: Path) -> RecordedRun:
    return RecordedRun("tiny-abcdef", {"team": "a"})


async def get(client: Client, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_run_that_nobody_submitted_is_there(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    run.train(range(1, 4))
    ingester.catch_up()
    async with open_client() as client:
        job = await get(client, JOB)
        assert (job["attempt"], job["last_step"], job["last_event"]) == (1, 3, 1)
        assert job["labels"] == {"team": "a"}
        assert (job["status"], job["stale_s"]) == (None, None)
        assert job["config"]["training"]["max_steps"] > 0
        assert [each["job_id"] for each in (await get(client, "/v1/jobs"))["jobs"]] == [run.job_id]
        (attempt,) = await get(client, f"{JOB}/attempts")
        assert (attempt["number"], attempt["submission_id"]) == (1, None)
        assert (await get(client, f"{JOB}/checkpoints")) == {"checkpoints": []}


async def test_how_it_ended_is_told(open_client: OpenClient, run: RecordedRun, ingester: Ingester):
    run.end(RunState.FAILED)
    ingester.catch_up()
    async with open_client() as client:
        job = await get(client, JOB)
    assert (job["state"], job["reason"], job["stale_s"]) == ("failed", "so it ended", 0.0)


async def test_events_come_in_pages_from_a_number_on(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    run.happen(5)
    ingester.catch_up()
    async with open_client() as client:
        first = await get(client, f"{JOB}/events?limit=4")
        rest = await get(client, f"{JOB}/events?after=4")
        none = await get(client, f"{JOB}/events?after=100")
    assert [event["number"] for event in first["events"] + rest["events"]] == [1, 2, 3, 4, 5, 6]
    assert first["last_event"] == 6
    assert rest["events"][-1]["data"] == {"of": 4}
    assert none["events"] == []


async def test_metrics_come_from_a_step_on_as_many_points_as_asked_for(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    run.train(range(1, 21))
    ingester.catch_up()
    async with open_client() as client:
        late = (await get(client, f"{JOB}/metrics?since_step=18"))["points"]
        few = (await get(client, f"{JOB}/metrics?max_points=5&name=loss"))["points"]
    assert [point["last_step"] for point in late] == [19, 20]
    assert late[0]["values"]["loss"]["mean"] == pytest.approx(1 / 19)
    assert len(few) <= 5
    assert sum(point["num_steps"] for point in few) == 20
    assert all(point["values"].keys() == {"loss"} for point in few)


async def test_a_metric_that_the_job_lacks_is_refused(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    run.train(range(1, 3))
    ingester.catch_up()
    async with open_client() as client:
        answer = await client.get(f"{JOB}/metrics?name=loss&name=nonsense")
    assert (answer.status_code, answer.json()["type"]) == (422, ProblemType.INVALID.urn)
    assert answer.json()["detail"].startswith("query.name: got 'nonsense', expected what the job")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", f"{JOB}/metrics?names=loss", "query.name"),
        ("GET", f"{JOB}?bogus=1", "expected none; remove query.bogus"),
        ("GET", f"{JOB}/events?after=1&bogus=1", "expected one of after, limit; "),
        ("HEAD", f"{JOB}/events?bogus=1", ""),
        ("POST", f"{JOB}/stop?force=1", "remove query.force"),
        ("DELETE", f"{JOB}?force=1", "remove query.force"),
        ("GET", "/v1/jobs?stat=running", "query.state"),
        ("GET", "/v1/cluster?a=1", "remove query.a"),
        ("GET", "/healthz?a=1", "remove query.a"),
    ],
)
async def test_a_parameter_that_an_address_lacks_is_refused(
    method: str,
    path: str,
    said: str,
    open_client: OpenClient,
    run: RecordedRun,
    ingester: Ingester,
):
    ingester.catch_up()
    async with open_client() as client:
        answer = await client.request(method, path)
        page = await client.get("/?from=mail")
    assert answer.status_code == 422
    if said:
        assert answer.json()["type"] == ProblemType.INVALID.urn
        assert answer.json()["errors"][0]["got"] == "an unknown parameter"
        assert said in answer.json()["detail"]
    assert page.status_code == 200


async def test_a_loss_that_is_no_number_is_answered_as_json(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    with (run.directory / "metrics.jsonl").open("a") as metrics:
        metrics.write(
            '{"step": 1, "epoch": "1.1", "world_size": 1, "committed_at_s": 5.0, "loss": NaN}\n'
        )
    ingester.catch_up()
    async with open_client() as client:
        (point,) = (await get(client, f"{JOB}/metrics"))["points"]
    assert (point["values"]["loss"]["mean"], point["values"]["loss"]["num_non_finite"]) == (None, 1)


async def test_status_and_workers_are_told_with_their_age(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester, clock: FakeClock
):
    as_of_s = SYSTEM_CLOCK.unix_s() + 1  # after the attempt began
    worker = '{"worker_id": "slot0-1.0", "rank": 0, "state": "member", "node_id": "n", "host": null'
    (run.directory / "status.json").write_text(
        '{"status": {"job_id": "tiny-abcdef", "state": "running", "step": 7, "ending": null,'
        f' "as_of_s": {as_of_s!r}}}, "workers": ['
        f'{worker}, "pid": 42, "step": 8, "phase": "compute", "lag_s": 0.1}}]}}'
    )
    clock.now_s = as_of_s + 10
    ingester.catch_up()
    async with open_client() as client:
        job = await get(client, JOB)
        workers = await get(client, f"{JOB}/workers")
        (listed,) = (await get(client, "/v1/jobs"))["jobs"]
    assert listed["stale_s"] == pytest.approx(10.0)
    assert (job["state"], job["status"]["step"], job["stale_s"]) == (
        "running",
        7,
        pytest.approx(10.0),
    )
    assert (workers["stale_s"], workers["published_at_s"]) == (pytest.approx(10.0), as_of_s)
    assert [row["pid"] for row in workers["workers"]] == [42]


@pytest.mark.parametrize(
    "query",
    [
        "events?after=-1",
        "events?after=x",
        "events?limit=0",
        f"events?after={GREATEST + 1}",
        f"events?after={10**30}",
        "metrics?max_points=0",
        "metrics?since_step=1.5",
        f"metrics?since_step={2**63}",
        "logs?offset=-1",
        f"logs?offset={GREATEST + 1}",
        f"logs?offset={10**30}",
        "logs?tail=-1",
        "logs?follow=perhaps",
    ],
)
async def test_a_wrong_question_is_refused(
    query: str, open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    ingester.catch_up()
    async with open_client() as client:
        answer = await client.get(f"{JOB}/{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["setting"].startswith("query.")


async def test_a_log_is_read_from_a_byte_on(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    ingester.catch_up()
    async with open_client() as client:
        answer = await client.get(f"{JOB}/logs")
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:trainflow:problem:log-not-found"
        (run.directory / "driver.log").write_bytes(b"\xffone\ntwo\n" + b"x" * 200_000)
        assert len((await client.get(f"{JOB}/logs")).content) == 200_009
        assert (await client.get(f"{JOB}/logs?offset=5")).content.startswith(b"two\n")
        for offset in (200_009, 999_999, 2**44 - 1, GREATEST):
            past = await client.get(f"{JOB}/logs?offset={offset}")
            assert (past.status_code, past.content) == (200, b"")
            assert past.headers["log-offset"] == str(offset)
        for tail, begin in ((5, 200_004), (0, 200_009), (999_999, 0), (GREATEST, 0)):
            end = await client.get(f"{JOB}/logs?tail={tail}")
            assert (end.headers["log-offset"], len(end.content)) == (str(begin), 200_009 - begin)
        for offset in (0, 1):
            both = await client.get(f"{JOB}/logs?tail=5&offset={offset}")
            assert (both.status_code, "leave one out" in both.json()["detail"]) == (422, True)
            assert both.json()["type"] == "urn:trainflow:problem:invalid-request"


async def test_a_workers_log_is_read_by_its_name_or_its_rank(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    logs = run.directory / "logs"
    append_to_log(logs / "slot0-1.0", b"hello\n")
    append_to_log(logs / "slot1-1.0", b"gone\n")
    run.form("slot2-1.0", "slot1-1.0")
    run.form("slot2-1.0", "slot0-1.0")
    ingester.catch_up()
    async with open_client() as client:
        listed = (await get(client, f"{JOB}/logs/workers"))["workers"]
        assert [(each["worker_id"], each["rank"], each["end"]) for each in listed] == [
            ("slot0-1.0", 1, 6),
            ("slot1-1.0", None, 5),
        ]
        for worker, worker_id, text in (
            ("slot0-1.0", "slot0-1.0", b"hello\n"),
            ("1", "slot0-1.0", b"hello\n"),
            ("slot1-1.0", "slot1-1.0", b"gone\n"),
        ):
            answer = await client.get(f"{JOB}/logs?worker={worker}")
            assert (answer.headers["log-worker"], answer.content) == (worker_id, text)
        assert (await client.get(f"{JOB}/logs?worker=1&offset=2")).content == b"llo\n"
        past = await client.get(f"{JOB}/logs?worker=1&offset={GREATEST}")
        assert (past.status_code, past.headers["log-offset"]) == (200, str(GREATEST))
        assert past.content == b""
        for unknown in ("0", "2", "slot9-1.0"):
            answer = await client.get(f"{JOB}/logs?worker={unknown}")
            assert (answer.status_code, "logs/workers" in answer.json()["detail"]) == (404, True)
        for wrong in ("..", "a/b", "%2e%2e%2fevents", "-x"):
            assert (await client.get(f"{JOB}/logs?worker={wrong}")).status_code == 422


async def test_the_log_of_a_rank_is_that_of_who_had_it_last(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    for name in ("slot0-1.0", "slot1-1.0", "slot2-1.0", "slot3-1.0"):
        append_to_log(run.directory / "logs" / name, name.encode())
    async with open_client() as client:

        async def read() -> list[str]:
            ingester.catch_up()
            answers = [await client.get(f"{JOB}/logs?worker={rank}") for rank in range(3)]
            return [answer.text if answer.is_success else "" for answer in answers]

        assert await read() == ["", "", ""]
        run.form("slot0-1.0", "slot1-1.0", "slot2-1.0")
        assert await read() == ["slot0-1.0", "slot1-1.0", "slot2-1.0"]
        run.form("slot0-1.0", "slot2-1.0")  # one is lost, and there is no spare
        assert await read() == ["slot0-1.0", "slot2-1.0", "slot2-1.0"]
        run.form("slot3-1.0", "slot2-1.0")
        run.end()
        assert await read() == ["slot3-1.0", "slot2-1.0", "slot2-1.0"]
        listed = (await get(client, f"{JOB}/logs/workers"))["workers"]
        assert [each["rank"] for each in listed] == [None, None, 1, 0]
        never = await client.get(f"{JOB}/logs?worker=3")
        assert "expected one that a worker has or had, 0 to 2" in never.json()["detail"]


async def test_who_asks_for_what_was_removed_is_told_where_the_log_begins(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES", 4)
    monkeypatch.setattr(log_segments, "NUM_SEGMENTS", 2)
    for number in range(5):
        append_to_log(run.directory / "logs" / "slot0-1.0", f"line{number}\n".encode())
    ingester.catch_up()
    async with open_client() as client:
        answer = await client.get(f"{JOB}/logs?worker=slot0-1.0&offset=3")
        assert (answer.headers["log-offset"], answer.content) == ("18", b"line3\nline4\n")
        driver = await client.get(f"{JOB}/logs?worker=slot0-1.0&offset=24")
        assert (driver.headers["log-offset"], driver.content) == ("24", b"line4\n")
        for tail, begin in (("8", "22"), ("999", "18")):
            end = await client.get(f"{JOB}/logs?worker=slot0-1.0&tail={tail}")
            assert (end.headers["log-offset"], end.content[-6:]) == (begin, b"line4\n")


async def test_nothing_of_jobs_is_kept_in_caches(
    open_client: OpenClient, run: RecordedRun, ingester: Ingester
):
    ingester.catch_up()
    async with open_client() as client:
        for path in (JOB, f"{JOB}/workers", "/v1/jobs/nobody"):
            assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_the_cluster_is_described(open_client: OpenClient):
    async with open_client() as client:
        assert (await get(client, "/v1/cluster"))["total"] == {"CPU": 2.0}
