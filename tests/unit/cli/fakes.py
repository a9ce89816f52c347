"""A cluster that isn't there, for commands to talk to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainflow.config.job import JobConfig
from trainflow.coordination.names import Attempt
from trainflow.coordination.profile_list import Profile, Trace
from trainflow.errors import JobNotFoundError

Answer = dict[str, Any]


def make_step(number: int, **changes: Any) -> Answer:
    step = {
        "step": number,
        "world_size": 3,
        "committed_at_s": 1000.0 + number,
        "applied": True,
        "loss": 2.5,
        "grad_norm": 1.25,
        "lr": 0.001,
        "weight": 512.0,
        "scalars": {},
    }
    return step | changes


def make_event(number: int, **changes: Any) -> Answer:
    event = {"number": number, "at_s": 1000.0 + number, "kind": "launched", "text": "3 workers"}
    return event | {"data": {}} | changes


def make_status(**changes: Any) -> Answer:
    status = {
        "job_id": "tiny-abcdef",
        "name": "tiny",
        "directory": "/runs/tiny-abcdef",
        "max_steps": 10,
        "step": 0,
        "world_size": 3,
        "spares": 2,
        "epoch": "1.1",
        "incarnation": 1,
        "failures": 0,
        "as_of_s": 1000.0,
        "state": "running",
        "stragglers": [],
        "slow_network": [],
        "anomalies": [],
        "detectors_off": [],
        "goodput": None,
        "ending": None,
        "events": [],
        "steps": [],
    }
    return status | changes


def make_ending(state: str, exit_code: int, reason: str = "so it ended") -> Answer:
    return make_status(state=state, ending={"reason": reason, "exit_code": exit_code})


@dataclass
class FakeRun:
    """Gives its answers one after another, the last one for ever; an exception is raised.

    Attributes:
        calls: what was asked, in order.
    """

    answers: Sequence[Answer | Exception] = (make_ending("succeeded", 0),)
    stop_answers: Sequence[Exception | None] = (None,)
    job_id: str = "tiny-abcdef"
    calls: list[str] = field(default_factory=list)

    def status(self, since_event: int | None = 0, since_step: int = 0) -> Answer:
        return self._answer("status", self.answers)

    def is_ending(self) -> bool:
        return False

    def stop(self) -> None:
        self._answer("stop", self.stop_answers)

    def profile(self, num_steps: int, ranks: Sequence[int]) -> Profile:
        self.calls.append(f"profile {num_steps} steps of {tuple(ranks)}")
        traces = tuple(Trace(rank, f"slot{rank}-1.{rank}") for rank in ranks)
        return Profile(1, 1000.0, num_steps, 8, traces)

    def retire(self) -> None:
        self.calls.append("retire")

    def workers(self) -> list[Answer]:
        self.calls.append("workers")
        row = {"rank": 0, "worker_id": "slot0-1.0", "host": "10.0.0.1", "pid": 42, "node_id": "n"}
        return [row | {"state": "member", "step": 7, "phase": "compute", "lag_s": 0.04}]

    def _answer(self, call: str, answers: Sequence[Any]) -> Any:
        number = self.calls.count(call)
        self.calls.append(call)
        answer = answers[min(number, len(answers) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class FakeCluster:
    """What `driver` finds.

    Attributes:
        runs: by job id.
        addresses: that were connected to.
        attempts: of the runs that were started.
    """

    runs: dict[str, FakeRun] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    attempts: list[Attempt | None] = field(default_factory=list)

    def start_run(self, job: JobConfig, attempt: Attempt | None = None) -> FakeRun:
        self.attempts.append(attempt)
        return self.runs["tiny-abcdef"]

    def find_run(self, job_id: str) -> FakeRun:
        if job_id not in self.runs:
            raise JobNotFoundError(f"job: got {job_id!r}")
        return self.runs[job_id]
