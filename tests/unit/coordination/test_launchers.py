"""How Ray is told to start a worker, by what the Keeper of its node says."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import Method
from trainflow.config.job import JobConfig
from trainflow.coordination import launchers as module
from trainflow.coordination.launchers import Launchers

COMMAND = "/node/python -S -E launcher.py name"


def find(answer: Any, job: JobConfig | None = None, node_id: str | None = "a") -> dict[str, Any]:
    """Return what a worker is started with where its node's Keeper answers like that."""

    async def reply() -> str | None:
        if isinstance(answer, BaseException):
            raise answer
        if answer == "silent":
            await asyncio.Event().wait()
        return answer

    keeper = SimpleNamespace(fork_command=Method(reply))
    nodes: Any = SimpleNamespace(keeper_of={"a": keeper}.get)
    return asyncio.run(Launchers(job or make_job(), nodes).find_environment(node_id))


def with_environment(environment: dict[str, Any], **workers: Any) -> JobConfig:
    return make_job(workers=workers).model_copy(update={"runtime_env": environment})


def test_a_worker_is_forked_where_its_keeper_says_by_what():
    assert find(COMMAND) == {"py_executable": COMMAND}


def test_a_job_s_own_environment_stays():
    own = {"env_vars": {"A": "1"}}
    assert find(COMMAND, with_environment(own)) == own | {"py_executable": COMMAND}


@pytest.mark.parametrize("answer", [None, ActorDiedError(), "silent", RuntimeError("no thread")])
def test_where_the_keeper_names_nothing_python_is_started(
    answer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_FIRST_ANSWER_WITHIN_S", 0.01)
    assert find(answer) == {}


@pytest.mark.parametrize("node_id", [None, "b"])
def test_where_it_is_not_known_who_keeps_the_node_python_is_started(node_id: str | None):
    assert find(COMMAND, node_id=node_id) == {}


@pytest.mark.parametrize(
    "job",
    [
        with_environment({}, start_method="spawn"),
        with_environment({"pip": ["einops"]}),
        with_environment({"py_executable": "my-python"}),
    ],
    ids=["spawn", "pip", "py_executable"],
)
def test_a_job_that_wants_another_python_gets_it(job: JobConfig):
    assert find(AssertionError("nobody is asked"), job) == job.runtime_env


def test_a_keeper_that_may_be_starting_is_waited_for_longer_once(
    monkeypatch: pytest.MonkeyPatch,
):
    limits_s: list[float] = []
    timeout = asyncio.timeout

    def note(limit_s: float) -> asyncio.Timeout:
        limits_s.append(limit_s)
        return timeout(limit_s)

    monkeypatch.setattr(module.asyncio, "timeout", note)

    async def reply() -> str:
        return COMMAND

    async def ask_twice() -> None:
        nodes: Any = SimpleNamespace(
            keeper_of=lambda _: SimpleNamespace(fork_command=Method(reply))
        )
        launchers = Launchers(make_job(), nodes)
        for node_id in ("a", "a", "b"):
            await launchers.find_environment(node_id)

    asyncio.run(ask_twice())
    first_s, again_s, other_s = limits_s
    assert first_s == other_s > again_s
