"""Real processes that stand still are asked where."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.standing import HANGS, WORKER_ID, start_standing
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.computation.stack_file import HEADER_BYTES, STACK_SIGNAL, StackFile
from trainflow.coordination.stack_dumps import (
    MAX_DUMP_BYTES,
    StackDump,
    dump_stacks,
    locate_stacks,
)
from trainflow.coordination.standstill import Frame, parse_stacks

WITHIN_S = 20.0
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(*args: str, **others: str) -> subprocess.Popen[bytes]:
        processes.append(start_standing(tmp_path, *args, **others))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


def dump(folder: Path, *, clock: Clock = SYSTEM_CLOCK, within_s: float = WITHIN_S) -> StackDump:
    return dump_stacks(folder, [WORKER_ID], clock, within_s)[WORKER_ID]


def training_frames(shown: StackDump) -> list[Frame]:
    return list(parse_stacks(shown.text)[shown.training_thread])


def wait_for_state(process: subprocess.Popen[bytes], state: str) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while psutil.Process(process.pid).status() != state:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"it is never {state}"
        SYSTEM_CLOCK.sleep(0.01)


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS.keys())
def test_a_thread_that_is_blocked_shows_where(start: Start, tmp_path: Path, hang: str):
    process = start(hang)
    shown = dump(tmp_path)
    assert (shown.pid, shown.trouble) == (process.pid, "")
    assert training_frames(shown)[0].function == "stand_still"
    assert "_beat" in shown.text, "the pulse's thread is another"
    assert "in <module>" in shown.text, "so is the main thread"


def test_what_it_waits_for_comes_with_its_stacks(start: Start, tmp_path: Path):
    begin = "stacks.name_training_thread(); stamps.note_awaited('parameters of block.1')"
    start(begin=begin)
    assert dump(tmp_path).awaited == "parameters of block.1"


def test_a_process_lives_on_and_can_be_asked_again(start: Start, tmp_path: Path):
    process = start()
    first, again = dump(tmp_path), dump(tmp_path)
    assert process.poll() is None
    assert again.text.count("stand_still") == first.text.count("stand_still") == 1


def test_a_stopped_process_shows_nothing_and_is_not_waited_for(start: Start, tmp_path: Path):
    process = start()
    process.send_signal(signal.SIGSTOP)
    wait_for_state(process, psutil.STATUS_STOPPED)
    shown = dump(tmp_path, clock=FakeClock())  # whose sleep raises
    assert shown.text == ""
    assert shown.trouble.startswith(f"its process {shown.pid} is stopped")
    process.send_signal(signal.SIGCONT)
    assert dump(tmp_path).trouble == ""


@pytest.mark.parametrize("is_reaped", [True, False], ids=["reaped", "zombie"])
def test_a_process_that_is_gone_is_not_waited_for(start: Start, tmp_path: Path, *, is_reaped: bool):
    process = start()
    process.kill()
    if is_reaped:
        process.wait()
    else:
        wait_for_state(process, psutil.STATUS_ZOMBIE)
    assert dump(tmp_path, clock=FakeClock()).trouble == "its process is gone"


def test_a_process_that_the_signal_would_end_is_left_alone(start: Start, tmp_path: Path):
    process = start(prepare="", begin="pass")
    shown = dump(tmp_path, clock=FakeClock())
    assert shown.trouble == "it is not prepared to show its stacks"
    process.send_signal(signal.SIGSTOP)  # also heeded by one that is about to end
    wait_for_state(process, psutil.STATUS_STOPPED)


def test_one_that_takes_the_signal_and_writes_nothing_is_given_up(start: Start, tmp_path: Path):
    start(prepare="signal.signal(STACK_SIGNAL, lambda *_: None)", begin="pass")
    locate_stacks(tmp_path, WORKER_ID).write_bytes(bytes(HEADER_BYTES))
    shown = dump(tmp_path, within_s=0.1)
    assert shown.trouble == "it has not shown its stacks within 0.1 s"


def test_training_that_has_not_begun_has_no_thread(start: Start, tmp_path: Path):
    start(begin="pass")
    shown = dump(tmp_path)
    assert "stand_still" in shown.text
    assert shown.training_thread == 0


BEGIN_DEEP = """barrier = threading.Barrier(91)
    def deep(n):
        return (barrier.wait(), time.sleep(1000)) if n == 0 else deep(n - 1)
    for _ in range(90):
        threading.Thread(target=deep, args=(98,)).start()
    barrier.wait()"""


def test_very_long_stacks_are_cut(start: Start, tmp_path: Path):
    start(begin=BEGIN_DEEP)
    assert len(dump(tmp_path).text) == MAX_DUMP_BYTES


def test_a_worker_that_is_not_here_is_left_out(tmp_path: Path):
    assert dump_stacks(tmp_path, ["slot7-1.7"], FakeClock(), WITHIN_S) == {}


def test_a_worker_without_room_for_the_file_trains_without_it(tmp_path: Path):
    (tmp_path / "file").touch()
    stacks = StackFile(tmp_path / "file" / "slot1-1.1.stacks")
    stacks.name_training_thread()


def test_a_worker_that_was_closed_leaves_no_file_and_survives_the_signal(
    start: Start, tmp_path: Path
):
    process = start(begin="stacks.close()")
    assert not locate_stacks(tmp_path, WORKER_ID).exists()
    process.send_signal(STACK_SIGNAL)
    process.send_signal(signal.SIGSTOP)  # heeded after it, by one that lives
    wait_for_state(process, psutil.STATUS_STOPPED)
