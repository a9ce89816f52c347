"""A Keeper's calls to the coordinator: what goes over, and that nobody there is no answer."""

from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from trainflow.coordination import upload_desk
from trainflow.coordination.upload_desk import RemoteDesk
from trainflow.epochs import EpochId, Version
from trainflow.errors import UnreachableError

VERSION = Version(9, EpochId(1, 1))


class FakeRay:
    """One actor that notes its calls and answers as it is told to."""

    def __init__(self, answer: Any):
        self.answer = answer
        self.calls: list[tuple[Any, ...]] = []

    def get_actor(self, name: str, namespace: str) -> "FakeRay":
        return self

    def __getattr__(self, method: str) -> Any:
        class Method:
            remote = staticmethod(lambda *arguments: self.calls.append((method, *arguments)))

        return Method

    def get(self, call: None, timeout: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_look_takes_no_report_along(monkeypatch: pytest.MonkeyPatch):
    fake = FakeRay(None)
    monkeypatch.setattr(upload_desk, "ray", fake)
    assert RemoteDesk("job-1", "node-1").look(VERSION, "p1") is None
    assert fake.calls == [("look_after_share", VERSION, "p1")]


@pytest.mark.parametrize("error", [ValueError("no such actor"), GetTimeoutError("too slow")])
def test_nobody_there_is_no_answer(monkeypatch: pytest.MonkeyPatch, error: Exception):
    monkeypatch.setattr(upload_desk, "ray", FakeRay(error))
    with pytest.raises(UnreachableError):
        RemoteDesk("job-1", "node-1").look(VERSION, "p1")
