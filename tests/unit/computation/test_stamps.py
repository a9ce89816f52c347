import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.stamps import PULSE_INTERVAL_S, Stamp, StampWriter, read_stamp
from trainflow.epochs import EpochId, Phase

DEADLINE_S = 20.0

WRITE_ALL_THE_TIME = """
import sys
from pathlib import Path
from trainflow.computation.stamps import StampWriter
from trainflow.epochs import EpochId, Phase
writer = StampWriter(Path(sys.argv[1]))
print("stamped", flush=True)
while True:
    for phase in (Phase.COMPUTE, Phase.COMMUNICATE):
        writer.stamp(phase, step=7, epoch=EpochId(1, 1), sequence=3)
"""

WRITE_UNTIL_CLOSED = """
import sys
from pathlib import Path
from trainflow.computation.stamps import StampWriter
writer = StampWriter(Path(sys.argv[1]))
print("stamped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "slot0-1.stamp"


@pytest.fixture
def writer(path: Path) -> Iterator[StampWriter]:
    writer = StampWriter(path)
    yield writer
    writer.close()


Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start a program that stamps in a process of its own."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_program(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"stamped\n"
        return process

    yield start_program
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(path: Path, holds: Callable[[Stamp], bool]) -> Stamp:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        stamp = read_stamp(path)
        if stamp is not None and holds(stamp):
            return stamp
        SYSTEM_CLOCK.sleep(PULSE_INTERVAL_S / 4)
    raise AssertionError(f"not seen within {DEADLINE_S} s; last {read_stamp(path)}")


def test_a_worker_is_starting_until_it_says_otherwise(path: Path, writer: StampWriter):
    stamp = read_stamp(path)
    assert stamp is not None
    assert (stamp.phase, stamp.pid) == (Phase.STARTING, os.getpid())


@pytest.mark.parametrize("phase", list(Phase))
def test_what_is_stamped_is_read(path: Path, writer: StampWriter, phase: Phase):
    before_s = time.monotonic()
    writer.stamp(phase, step=2**40, epoch=EpochId(3, 4), sequence=99)
    stamp = read_stamp(path)
    assert stamp is not None
    assert (stamp.phase, stamp.step, stamp.epoch) == (phase, 2**40, EpochId(3, 4))
    assert stamp.sequence == 99
    assert before_s <= stamp.progress_at_s <= time.monotonic()


def test_a_wait_for_others_is_stamped_and_then_what_was_before(path: Path, writer: StampWriter):
    writer.stamp(Phase.COMPUTE, step=7, epoch=EpochId(3, 4), sequence=9)
    with suppress(ZeroDivisionError), writer.waiting():
        stamp = read_stamp(path)
        raise ZeroDivisionError
    assert stamp is not None
    assert (stamp.phase, stamp.step, stamp.epoch) == (Phase.COMMUNICATE, 7, EpochId(3, 4))
    later = read_stamp(path)
    assert later is not None
    assert (later.phase, later.step, later.sequence) == (Phase.COMPUTE, 7, 9)
    assert later.progress_at_s >= stamp.progress_at_s


def test_what_is_waited_for_is_told_until_the_next_phase(path: Path, writer: StampWriter):
    def awaited() -> str:
        stamp = read_stamp(path)
        assert stamp is not None
        return stamp.awaited

    assert awaited() == ""
    writer.note_awaited("the sum of /gradients/model/block.1.weight")
    writer.note_awaited("the sum of /gradients/model/b")
    assert awaited() == "the sum of /gradients/model/b"
    writer.note_awaited("w" * 1000)
    assert awaited() == "w" * 255
    with writer.waiting("parameters of block.1"):
        assert awaited() == "parameters of block.1"
    assert awaited() == ""


def test_progress_is_renewed_in_the_same_phase(path: Path, writer: StampWriter):
    writer.stamp(Phase.HEALING, step=7, epoch=EpochId(3, 4), sequence=9)
    before_s = time.monotonic()
    writer.renew()
    stamp = read_stamp(path)
    assert stamp is not None
    assert stamp.phase is Phase.HEALING
    assert stamp.progress_at_s >= before_s


def test_no_stamp_is_no_worker(path: Path):
    assert read_stamp(path) is None
    path.parent.mkdir()
    path.write_bytes(b"short")
    assert read_stamp(path) is None


def test_a_file_before_its_first_stamp_is_no_worker(path: Path):
    """Seen by chance as one that last ran when the machine started, and killed for it."""
    seen: list[Stamp | None] = []

    class Watched(StampWriter):
        def renew(self) -> None:
            seen.append(read_stamp(path))
            super().renew()
            seen.append(read_stamp(path))

    Watched(path).close()
    assert seen[:2] == [None, None]


def test_a_closed_worker_leaves_nothing_behind(path: Path):
    StampWriter(path).close()
    assert read_stamp(path) is None


def test_a_process_that_runs_pulses_though_training_stands_still(path: Path, start: Start):
    process = start(WRITE_UNTIL_CLOSED)
    first = read_stamp(path)
    assert first is not None
    later = wait_until(path, lambda stamp: stamp.pulse_at_s > first.pulse_at_s)
    assert later.progress_at_s == first.progress_at_s
    assert later.pid == process.pid


def test_the_pulse_of_a_stopped_process_goes_stale_and_comes_back(path: Path, start: Start):
    process = start(WRITE_UNTIL_CLOSED)
    process.send_signal(signal.SIGSTOP)
    stopped = wait_until(
        path, lambda stamp: time.monotonic() - stamp.pulse_at_s > 10 * PULSE_INTERVAL_S
    )
    process.send_signal(signal.SIGCONT)
    wait_until(path, lambda stamp: stamp.pulse_at_s > stopped.pulse_at_s)


def test_no_field_is_ever_seen_half_written(path: Path, start: Start):
    process = start(WRITE_ALL_THE_TIME)
    begun_at_s = wait_until(path, lambda stamp: stamp.step == 7).progress_at_s
    for _ in range(20_000):
        stamp = read_stamp(path)
        assert stamp is not None
        assert (stamp.pid, stamp.step, stamp.epoch) == (process.pid, 7, EpochId(1, 1))
        assert stamp.phase in {Phase.COMPUTE, Phase.COMMUNICATE}
        assert min(stamp.progress_at_s, stamp.pulse_at_s) >= begun_at_s
