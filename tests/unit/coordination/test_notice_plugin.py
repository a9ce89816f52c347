"""What a machine's provider says of it, by a class of the job's own."""

import sys
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock, OneLook
from trainflow.coordination import preemption_notice
from trainflow.coordination.notice_plugin import PluginSource, build_source, watch_plugin
from trainflow.coordination.preemption_notice import NoticePoll, PreemptionNotice
from trainflow.errors import ConfigError

MODULE = """
import sys
from trainflow.coordination.preemption_notice import PreemptionNotice

said, built = [], []

class Own(PreemptionNotice):
    pass

class Spot:
    def __init__(self):
        built.append(self)
        if said == ["not yet"]:
            raise OSError("no route")

    def poll_notice(self):
        answer = said[0]
        if answer == "exit":
            sys.exit("no module of the cloud's")
        if isinstance(answer, Exception):
            raise answer
        return answer

class Mute:
    pass

class Choosy:
    def __init__(self, region):
        pass

class Exiting:
    def __init__(self):
        sys.exit(3)

def make_spot():
    return Spot()

spot = Spot()
"""
NAME = "notices_of_a_test"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job that has a source of its own; not among Python's paths."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return tmp_path


@pytest.fixture
def said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the source answers, first of all."""
    monkeypatch.syspath_prepend(folder)
    build_source(f"{NAME}:Spot")
    module = sys.modules[NAME]
    module.built.clear()
    return module.said


def num_built() -> int:
    return len(sys.modules[NAME].built)


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    ("spec", "got", "expected"),
    [
        ("no_such_notices:Spot", "ModuleNotFoundError: No module named", "can be imported"),
        (f"{NAME}:Spto", "which is no such name", "a class in "),
        (f"{NAME}:spot", "which is a Spot", "a class in "),
        (f"{NAME}:Mute", "which makes a Mute that has no such method", "poll_notice(self) -> Pre"),
        (f"{NAME}:Choosy", "raised TypeError: ", "can be built without arguments"),
        (f"{NAME}:Exiting", "raised SystemExit: 3", "can be built without arguments"),
    ],
)
def test_what_is_no_source_is_refused(spec: str, got: str, expected: str):
    with pytest.raises(ConfigError) as refusal:
        build_source(spec)
    message = str(refusal.value)
    assert message.startswith(f"failures.preemption_source: got {spec}, ")
    assert got in message
    assert expected in message.partition("; expected ")[2]
    assert "; change failures.preemption_source or what it names" in message


@pytest.mark.parametrize("name", ["Spot", "make_spot"])
def test_one_is_built_and_asked_again_and_again(said: list[object], name: str):
    source = PluginSource(f"{NAME}:{name}", FakeClock())
    said[:] = [PreemptionNotice(30, "by the hour")]
    assert [source.poll_notice() for _ in range(2)] == [PreemptionNotice(30.0, "by the hour")] * 2
    said[:] = [None]
    assert source.poll_notice() is None
    assert num_built() == 1


def test_what_it_says_can_be_read_where_its_module_is_not(said: list[object]):
    said[:] = [sys.modules[NAME].Own(30)]
    assert type(PluginSource(f"{NAME}:Spot", FakeClock()).poll_notice()) is PreemptionNotice


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (30.0, f"TypeError: got 30.0 from {NAME}:Spot, expected a PreemptionNotice, with the sec"),
        (PreemptionNotice(float("nan")), f"ValueError: got nan s from {NAME}:Spot, expected a Pr"),
        (PreemptionNotice(float("inf")), f"ValueError: got inf s from {NAME}:Spot, expected a Pr"),
        (OSError("no route"), "OSError: no route"),
        (OSError("x" * 10_000), "OSError: xxx"),
        ("exit", "SystemExit: no module of the cloud's"),
    ],
)
def test_one_that_fails_is_told_once_and_asked_on(
    said: list[object], monkeypatch: pytest.MonkeyPatch, answer: object, trouble: str
):
    told: list[str] = []
    monkeypatch.setattr(preemption_notice.logger, "exception", told.append)
    poll = NoticePoll(PluginSource(f"{NAME}:Spot", FakeClock()), FakeClock())
    said[:] = [answer]
    for _ in range(3):
        poll.poll_once()
        assert poll.trouble is not None
        assert poll.trouble.startswith(trouble)
        assert len(poll.trouble) <= 500
    assert len(told) == 1
    assert not poll.has_answered
    said[:] = [PreemptionNotice(5.0)]
    poll.poll_once()
    assert (poll.newest, poll.trouble) == (PreemptionNotice(5.0), None)


def test_what_can_t_be_built_is_tried_again_after_a_while(said: list[object]):
    clock = FakeClock()
    source = PluginSource(f"{NAME}:Spot", clock)
    said[:] = ["not yet"]
    for wait_s, expected in ((0.0, 1), (29.0, 1), (2.0, 2), (29.0, 2)):
        clock.now_s += wait_s
        with pytest.raises(ConfigError, match="raised OSError: no route"):
            source.poll_notice()
        assert num_built() == expected
    said[:] = [None]
    clock.now_s += 2.0
    assert source.poll_notice() is None


def test_it_is_found_beside_the_job_and_asked_in_a_thread_of_its_own(folder: Path):
    name = "notices_of_another_test"
    (folder / f"{name}.py").write_text(
        "import threading\n"
        "from trainflow.coordination.preemption_notice import PreemptionNotice\n"
        "class Spot:\n"
        "    def poll_notice(self):\n"
        "        return PreemptionNotice(60, threading.current_thread().name)\n"
    )
    clock = OneLook()
    poll = watch_plugin(f"{name}:Spot", (str(folder),), clock)
    assert clock.looked.wait(10.0)
    assert poll.trouble is None
    assert poll.newest is not None
    assert poll.newest.trouble == "preemption"
    assert 0 < poll.newest.left_s <= 60.0
