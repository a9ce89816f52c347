"""A job's own drills have what its workers have: its code, and its environment variables."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from ray._private.utils import update_envs

from tests.unit.checkpointing.small_job import STEP, all_files
from tests.unit.checkpointing.test_kept_secrets import NAME, SECRET, keep, secret_job
from tests.unit.coordination.fakes import FakeClock, guard_of
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.background import Background
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.job_variables import find_variables
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState

WITHIN_S = 60.0
ROOT = str(Path(__file__).parents[3])


@pytest.mark.slow
def test_what_the_training_function_needs_of_them_is_set(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(NAME, raising=False)
    job = with_checkpoint(secret_job(needs=NAME), url=store.url, drill_every_s=0.01)
    keep(store, job)
    control = CheckpointControl("job-1", job, record, FakeClock())
    control._stored = [StoredState(store.url, STEP)]

    async def act() -> None:
        failures: list[str] = []
        nothing: Any = None
        background, guard = Background(failures.append), guard_of(record)
        kept = KeptState(control, nothing, record, background, nothing, guard)
        kept.begin_drills(job, (ROOT,))
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
        while not record.events_since(0):
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s
            await asyncio.sleep(0.01)
        assert kept._drills is not None
        await kept._drills.close()
        assert failures == []

    asyncio.run(act())
    event = record.events_since(0)[0]
    assert event["kind"] == "drill", event["text"]
    for folder in (record.directory, Path(store.url)):
        assert not [data for data in all_files(folder).values() if SECRET.encode() in data]
    assert NAME not in os.environ


def with_checkpoint(job: JobConfig, **settings: Any) -> JobConfig:
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update=settings)})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"pip": ["einops"]}, {}),
        ({"env_vars": None}, {}),
        ({"env_vars": {"A": "1", "B": "two"}}, {"A": "1", "B": "two"}),
        ({"env_vars": {"PATH": "${PATH}:/x"}}, {"PATH": "/bin:/x"}),
        ({"env_vars": {"PATH": "/x", "B": "$PATH:/y"}}, {"PATH": "/x", "B": "/x:/y"}),
        ({"env_vars": {"A": "${UNKNOWN}/x", "B": "5$ or $less"}}, {"A": "/x", "B": "5$ or $less"}),
    ],
)
def test_they_are_those_that_ray_gives_to_workers(
    environment: dict[str, Any], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    assert find_variables(environment, {"PATH": "/bin"}) == expected
    for name in ("A", "B", "UNKNOWN", "less"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    update_envs(environment.get("env_vars") or {})
    assert {name: os.environ[name] for name in expected} == expected
    for name in ("A", "B"):
        os.environ.pop(name, None)
