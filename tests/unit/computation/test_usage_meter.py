"""What a worker takes of its machine gets into its stamp, and a device that fails does no harm."""

import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from trainflow.computation.stamps import StampWriter, read_stamp
from trainflow.computation.usage_meter import UsageMeter, noting_usage
from trainflow.epochs import EpochId, Phase
from trainflow.monitoring.usage import Usage

DEADLINE_S = 20.0
NUM_BYTES = 64 * 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "node" / "a.stamp"


@pytest.fixture
def writer(path: Path) -> Iterator[StampWriter]:
    writer = StampWriter(path)
    yield writer
    writer.close()


def usage_at(path: Path) -> Usage | None:
    stamp = read_stamp(path)
    assert stamp is not None
    return stamp.usage


def test_memory_is_what_the_kernel_says():
    meter = UsageMeter.of_device(torch.device("cpu"))
    before = meter.read()
    assert before.memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    with mmap.mmap(-1, NUM_BYTES) as taken:
        taken.write(b"1" * NUM_BYTES)
        assert meter.read().memory_bytes - before.memory_bytes > NUM_BYTES / 2
    assert (before.device_bytes, before.device_busy_ratio) == (None, None)


@pytest.mark.parametrize(
    "usage", [Usage(2**40 + 1), Usage(5, 2**37, 0.0), Usage(5, 0, None), Usage(5, None, 1.0)]
)
def test_it_comes_back_from_the_stamp_as_it_was(writer: StampWriter, path: Path, usage: Usage):
    assert usage_at(path) is None, "until it has been noted"
    writer.note_usage(usage)
    writer.stamp(Phase.COMPUTE, step=7, epoch=EpochId(1, 2), sequence=3)
    assert usage_at(path) == usage


def test_a_device_is_asked_no_more_once_it_has_failed():
    asked: list[str] = []

    def fail() -> float:
        asked.append("busy")
        raise ModuleNotFoundError("nvidia-ml-py")

    meter = UsageMeter({"device_busy_ratio": fail, "device_bytes": lambda: 7.0})
    for _ in range(3):
        assert (meter.read().device_bytes, meter.read().device_busy_ratio) == (7, None)
    assert asked == ["busy"]


def test_a_device_that_does_not_answer_keeps_no_pulse_waiting(writer: StampWriter, path: Path):
    answers, is_asked = threading.Event(), threading.Event()

    def hang() -> float:
        is_asked.set()
        answers.wait(DEADLINE_S)
        return 0.5

    with noting_usage(writer, UsageMeter({"device_busy_ratio": hang}), interval_s=0.01):
        assert is_asked.wait(DEADLINE_S)
        stamp = read_stamp(path)
        assert stamp is not None
        while (newer := read_stamp(path)) is None or newer.pulse_at_s <= stamp.pulse_at_s:
            threading.Event().wait(0.01)
    assert usage_at(path) is None
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "usage":
            thread.join(DEADLINE_S)


def test_it_is_noted_again_and_again(writer: StampWriter, path: Path):
    shares = iter([0.25, 0.5])
    seen = threading.Event()

    def tell() -> float:
        share = next(shares, None)
        if share is None:
            seen.set()
            return 0.75
        return share

    with noting_usage(writer, UsageMeter({"device_busy_ratio": tell}), interval_s=0.001):
        assert seen.wait(DEADLINE_S)
    assert "usage" not in [thread.name for thread in threading.enumerate()]
    usage = usage_at(path)
    assert usage is not None
    assert usage.device_busy_ratio == 0.75
