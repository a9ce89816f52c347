"""Why what is told may be old is asked of who keeps the history, where it matters."""

import json

import httpx
import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.runs import RecordedRun
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.run_state import RunState
from trainflow.service.app import create_app
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.keeping_problem import KeepingProblem
from trainflow.service.settings import ServiceSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def run(history: History) -> RecordedRun:
    """A run that trains, and has just told so."""
    run = RecordedRun("tiny-abcdef")
    told = {"state": "running", "as_of_s": SYSTEM_CLOCK.unix_s() + 1, "ending": None}
    (run.directory / "status.json").write_text(json.dumps({"status": told, "workers": []}))
    Ingester(history.database).catch_up()
    return run


async def test_a_history_that_cannot_be_kept_up_is_told_of_whatever_may_be_old(
    history: History, cluster: FakeCluster, clock: FakeClock, run: RecordedRun
):
    asked: list[str] = []

    def find_problem() -> str:
        asked.append("")
        return "the disk is full"

    published_at_s = history.jobs.get(run.job_id).job.published_at_s
    assert published_at_s is not None
    clock.now_s = published_at_s
    settings = ServiceSettings(authentication="off")
    app = create_app(settings, history, cluster, clock, find_problem=find_problem)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def find_told() -> list[str | None]:
            (listed,) = (await client.get("/v1/jobs")).json()["jobs"]
            paths = [f"/v1/jobs/{run.job_id}", f"/v1/jobs/{run.job_id}/workers"]
            answers = [listed, *[(await client.get(path)).json() for path in paths]]
            return [each["history_problem"] for each in answers]

        assert await find_told() == [None] * 3
        assert not asked, "what is fresh needs no reason"
        clock.sleep(10.0)
        assert await find_told() == ["the disk is full"] * 3
        assert len(asked) == 1
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["history_problem"]) == (200, "the disk is full")
        run.end(RunState.STOPPED)
        Ingester(history.database).catch_up()
        clock.sleep(10.0)
        assert await find_told() == [None] * 3, "it is final"


async def test_who_keeps_the_history_and_does_not_answer_is_told(clock: FakeClock):
    def find_problem() -> None:
        raise TimeoutError

    assert "doesn't answer" in (KeepingProblem(find_problem, clock).find() or "")
