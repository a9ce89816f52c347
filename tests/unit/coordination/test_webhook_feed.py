"""What a webhook is told of a run, and what is told where it isn't."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from tests.unit.coordination.test_run_record import STEP
from tests.unit.monitoring.webhook.servers import Server, serving
from trainflow.config.webhook import KINDS, WebhookConfig
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.coordination.webhook_feed import ENDED, WebhookFeed, write_document
from trainflow.monitoring import metrics

ROOT = Path(__file__).parents[3]
WITHIN_S = 30.0


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path, FakeClock())


class Feed:
    def __init__(self, record: RunRecord, **settings: Any):
        self.export = NotedExport()
        config = WebhookConfig.model_validate(settings)
        self.feed = WebhookFeed("lm-abc234", config, record, self.export)
        record.follow(self.feed)

    def end(self, state: RunState = RunState.SUCCEEDED) -> None:
        self.feed.end(state, FakeClock())
        self.feed.outbox.wait_closed(WITHIN_S)
        self.feed.outbox.tell_end()


def kinds_of(server: Server) -> list[str]:
    return [json.loads(each)["event"]["kind"] for each in server.documents]


def test_events_of_the_chosen_topics_are_posted(server: Server, record: RunRecord):
    feed = Feed(record, url=server.url, topics=["failures", "end"])
    record.add_event("failure", "lost slot1-1.1 (rank 1): its actor exited", worker="slot1-1.1")
    record.add_event("recovered", "in 0.3 s")
    record.add_step(STEP)
    feed.end()
    assert kinds_of(server) == ["failure", ENDED]
    document = json.loads(server.documents[0])
    assert document["version"] == 1
    assert document["job"] == "lm-abc234"
    assert document["text"] == "lm-abc234: lost slot1-1.1 (rank 1): its actor exited"
    assert document["event"] == record.events_since(0)[0]


def test_the_end_is_posted_with_what_the_run_came_to(server: Server, record: RunRecord):
    Feed(record, url=server.url).end(RunState.FAILED)
    (document,) = map(json.loads, server.documents)
    assert document["text"] == "lm-abc234: the run has failed"
    assert document["event"]["data"] == {"state": "failed"}
    assert record.events_since(0) == [], "the record has its own"


def test_what_is_not_told_is_counted_and_said_once(server: Server, record: RunRecord):
    server.answer = lambda _: 404
    feed = Feed(record, url=server.url)
    for n in range(3):
        record.add_event("failure", f"lost {n}")
    feed.end()
    feed.feed.outbox.tick()
    assert feed.export.value(metrics.POSTS_DROPPED, receiver="webhook") == 4
    told = {e["kind"]: e for e in record.events_since(0) if e["kind"].startswith("post")}
    assert told["post_failed"]["text"].endswith("127.0.0.1 answered 404")
    assert told["posts_incomplete"]["data"] == {"receiver": "webhook", "num_dropped": 4}
    assert len([e for e in record.events_since(0) if e["kind"] == "post_failed"]) == 1
    assert "secret" not in str(told)


def test_a_run_has_a_webhook_if_its_job_says_so(server: Server, record: RunRecord):
    job = make_job()
    webhook = WebhookConfig(url=server.url)
    monitoring = job.monitoring.model_copy(update={"webhook": webhook})
    with_webhook = job.model_copy(update={"monitoring": monitoring})
    monitor = RunMonitor("lm-abc234", with_webhook, record, FakeClock())
    record.add_event("failure", "lost")
    monitor.tick(3, 1)
    monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close(RunState.SUCCEEDED))
    assert kinds_of(server) == ["failure", ENDED]


def test_a_coordinator_that_finds_its_run_ended_leaves_at_once(server: Server, record: RunRecord):
    feed = Feed(record, url=server.url)
    feed.feed.outbox.wait_closed(WITHIN_S)
    feed.feed.outbox.tell_end()
    assert server.documents == []


def test_json_has_no_numbers_that_it_lacks():
    event = {"kind": "anomaly", "text": "NaN", "data": {"loss": math.nan, "all": [1.5, -math.inf]}}
    document = json.loads(write_document("lm", event))
    assert document["event"]["data"] == {"loss": None, "all": [1.5, None]}


def test_every_kind_that_is_told_of_is_recorded_somewhere():
    code = "".join(p.read_text() for p in (ROOT / "trainflow/coordination").glob("*.py"))
    told = frozenset[str]().union(*KINDS.values())
    assert [kind for kind in sorted(told) if f'"{kind}"' not in code] == []
