"""What a machine's provider says of it, by a file."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock, OneLook
from trainflow.coordination import preemption_notice
from trainflow.coordination.preemption_notice import (
    NoticeFile,
    NoticePoll,
    PreemptionNotice,
    read_deadline,
    watch_file,
)

WRITTEN_AT_S = 1000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "preempted"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S))


def poll(path: Path, now_s: float) -> PreemptionNotice | None:
    clock = FakeClock()
    clock.now_s = now_s
    return NoticeFile(path, clock).poll_notice()


def test_without_the_file_the_machine_stays(path: Path):
    assert poll(path, WRITTEN_AT_S) is None


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        ("30", 20.0),
        (" 30.5\n", 20.5),
        ("0", -10.0),
        ("", -10.0),
        (" \n", -10.0),
        ("1970-01-01T00:17:00Z", 10.0),
        ("1970-01-01T01:17:00+01:00", 10.0),
    ],
)
def test_it_says_how_much_time_is_left(path: Path, text: str, left_s: float):
    write(path, text)
    assert poll(path, WRITTEN_AT_S + 10.0) == PreemptionNotice(left_s)


@pytest.mark.parametrize(
    "text", ["soon", "-5", "nan", "inf", "1970-01-01T00:17:00", "30 s", "1795888800"]
)
def test_what_can_t_be_understood_means_now_and_is_told(path: Path, text: str):
    write(path, text)
    notice = poll(path, WRITTEN_AT_S)
    assert notice is not None
    assert notice.left_s == 0.0
    assert notice.trouble is not None
    assert notice.trouble.startswith(f"{path}: got {text!r}, expected seconds, as 30, or a moment")
    with pytest.raises(ValueError, match="write one of these, or nothing, which means now"):
        read_deadline(text, WRITTEN_AT_S)


class Failing:
    """A provider that answers now and then."""

    def __init__(self) -> None:
        self.answers: list[PreemptionNotice | BaseException | None] = []

    def poll_notice(self) -> PreemptionNotice | None:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_a_source_that_fails_has_said_nothing_new(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(preemption_notice.logger, "exception", said.append)
    source, notice = Failing(), PreemptionNotice(5.0)
    source.answers = [OSError("no route"), notice, OSError("no route"), OSError("no route"), None]
    asked = NoticePoll(source, FakeClock())
    seen: list[PreemptionNotice | None] = []
    troubles: list[str | None] = []
    for _ in range(5):
        asked.poll_once()
        seen.append(asked.newest)
        troubles.append(asked.trouble)
    assert seen == [None, notice, notice, notice, None]
    assert troubles == ["OSError: no route", None, "OSError: no route", "OSError: no route", None]
    assert len(said) == 2, "once in a row"


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError("gone")])
def test_a_source_that_gives_up_in_an_odd_way_is_asked_again(error: BaseException):
    source, notice = Failing(), PreemptionNotice(5.0)
    source.answers = [error, notice]
    asked = NoticePoll(source, FakeClock())
    asked.poll_once()
    assert asked.trouble == f"{type(error).__name__}: {error}"
    asked.poll_once()
    assert (asked.newest, asked.trouble) == (notice, None)


class Slow:
    """A provider that takes its time, in which somebody looks at what is known of it."""

    def __init__(self, clock: FakeClock):
        self.poll = NoticePoll(self, clock)
        self.troubles: list[str | None] = []
        self._clock = clock

    def poll_notice(self) -> PreemptionNotice | None:
        for _ in range(3):
            self._clock.now_s += 30.0
            self.troubles.append(self.poll.trouble)
        return None


def test_a_source_that_never_answers_is_told_of_until_it_does():
    source = Slow(FakeClock())
    source.poll.poll_once()
    assert source.troubles[:2] == [None, None]
    assert source.troubles[2] == ("TimeoutError: it has been asked, and has not answered for 60 s")
    assert source.poll.trouble is None


def test_time_passes_for_a_notice_whose_source_fails():
    clock, source = FakeClock(), Failing()
    asked = NoticePoll(source, clock)
    assert not asked.has_answered
    source.answers = [OSError("no route"), PreemptionNotice(30.0), OSError("no route")]
    asked.poll_once()
    assert not asked.has_answered
    asked.poll_once()
    clock.now_s += 40.0
    asked.poll_once()
    assert asked.newest == PreemptionNotice(-10.0)
    assert asked.has_answered


def test_what_can_t_be_understood_means_when_it_was_written(path: Path):
    write(path, "soon")
    notice = poll(path, WRITTEN_AT_S + 10.0)
    assert notice is not None
    assert notice.left_s == -10.0


def test_each_machine_has_its_own_file(tmp_path: Path):
    (tmp_path / "10.0.0.7").write_text("60")
    newest: list[PreemptionNotice | None] = []
    for host in ("10.0.0.7", "10.0.0.8"):
        clock = OneLook()
        asked = watch_file(f"{tmp_path}/{{host}}", host, clock)
        assert clock.looked.wait(10.0)
        newest.append(asked.newest)
    assert newest[0] is not None
    assert 0 < newest[0].left_s <= 60.0
    assert newest[1] is None


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_neither_waited_for_nor_taken_for_a_notice(path: Path, kind: str):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(
        OSError, match="expected a file" if kind != "folder" else f"directory: '{path}'"
    ):
        poll(path, WRITTEN_AT_S)
