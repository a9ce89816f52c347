"""The record of this machine's own head, without a Ray."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from tests.full_disk import room_for
from tests.unit.coordination.left_stamps import leave_stamp, stand_in_for_memory
from trainflow.cli import head as heads
from trainflow.cli.head import (
    HeadRecord,
    count_head_cpus,
    end_head,
    forget_head,
    locate_record,
    own_head,
    read_head,
    require_whole,
    serving_head,
    write_head,
)
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import WorkersConfig
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.local_node import LocalNode, find_node_id
from trainflow.coordination.sites import Sites
from trainflow.errors import ConflictError, CoordinationError, UnreachableError

WORKERS = WorkersConfig(minimum=1, target=3, spares=2)
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
PARENT = (
    f"import subprocess, signal; subprocess.Popen({SLEEPER!r}); print(flush=True); signal.pause()"
)
NODE_ID = "5eed" * 14
RAYLET = [*SLEEPER, "--store_socket_name=x", f"--node_id={NODE_ID}"]
RAYLET_PARENT = PARENT.replace(repr(SLEEPER), repr(RAYLET))
WITHIN_S = 10.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, that stands for a head."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    yield process
    process.stdout.close()
    for each in tree:
        if each.is_running():
            each.kill()
    process.wait()


@pytest.fixture
def temp_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "tf-head"
    directory.mkdir()
    (directory / "ray-start.log").touch()
    return directory


@pytest.fixture
def record(process: subprocess.Popen[bytes], temp_dir: Path, home: Path) -> HeadRecord:
    started_at_s = psutil.Process(process.pid).create_time()
    return HeadRecord("10.0.0.1:6379", process.pid, started_at_s, str(temp_dir))


def test_a_live_head_is_found(record: HeadRecord):
    assert read_head() is None
    write_head(record)
    assert read_head() == record
    assert [path.name for path in locate_record().parent.iterdir()] == ["head.json"]


def test_a_full_home_is_left_without_a_record(record: HeadRecord, home: Path):
    with room_for(0), pytest.raises(OSError, match="File too large"):
        write_head(record)
    assert list(home.iterdir()) == []


def test_a_second_head_is_refused_with_what_to_do(record: HeadRecord):
    write_head(record)
    with pytest.raises(ConflictError) as refusal:
        write_head(replace(record, address="10.0.0.2:6379"))
    for named in (record.address, str(record.pid), "--address", "trainflow down"):
        assert named in str(refusal.value)
    assert read_head() == record
    assert [path.name for path in locate_record().parent.iterdir()] == ["head.json"]


@pytest.mark.parametrize("change", [{"started_at_s": 1.0}, {"pid": 2**22 + 1}])
def test_a_stale_record_is_removed_with_the_files(
    change: dict[str, float], record: HeadRecord, temp_dir: Path
):
    write_head(replace(record, **change))
    assert read_head() is None
    assert not locate_record().exists()
    assert not temp_dir.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', "null"])
def test_a_record_that_is_none_is_removed(text: str, home: Path):
    home.mkdir()
    locate_record().write_text(text)
    assert read_head() is None
    assert not locate_record().exists()


def test_a_head_that_has_become_a_zombie_is_gone(
    record: HeadRecord, process: subprocess.Popen[bytes]
):
    write_head(record)
    child = psutil.Process(process.pid).children()[0]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    child.kill()
    assert read_head() is None


def test_forgetting_leaves_the_record_of_another(record: HeadRecord):
    write_head(record)
    forget_head(replace(record, pid=record.pid + 1))
    assert locate_record().exists()


def test_forgetting_leaves_a_directory_that_is_no_heads(record: HeadRecord, tmp_path: Path):
    forget_head(replace(record, temp_dir=str(tmp_path / "precious")))
    (tmp_path / "precious").mkdir()
    forget_head(replace(record, temp_dir=str(tmp_path / "precious")))
    assert (tmp_path / "precious").exists()


def test_ending_a_head_ends_its_descendants(record: HeadRecord, temp_dir: Path):
    write_head(record)
    [child] = psutil.Process(record.pid).children()
    end_head(record)
    assert record.find_process() is None
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
    assert not locate_record().exists()
    assert not temp_dir.exists()


def test_ending_a_head_ends_what_a_dead_raylet_was_starting(record: HeadRecord, temp_dir: Path):
    command = [*SLEEPER, f"--temp-dir={temp_dir}"]
    with subprocess.Popen(command) as orphan:
        end_head(record)
        assert orphan.wait(WITHIN_S) == -signal.SIGKILL
    assert not temp_dir.exists()


def test_a_head_that_can_not_be_ended_stays_recorded(
    record: HeadRecord, monkeypatch: pytest.MonkeyPatch
):
    write_head(record)
    monkeypatch.setattr(heads, "wait_gone", lambda *_: [record.pid])
    with pytest.raises(CoordinationError, match=str(record.pid)):
        end_head(record)
    assert locate_record().exists()


def test_another_process_of_that_pid_is_left_alone(
    record: HeadRecord, process: subprocess.Popen[bytes]
):
    end_head(replace(record, started_at_s=1.0))
    assert process.poll() is None


@pytest.fixture
def stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for what this user has in /dev/shm."""
    return stand_in_for_memory(tmp_path / "shm", monkeypatch)


def test_with_a_head_go_the_stamps_of_its_killed_workers(record: HeadRecord, stamps: Path):
    worker = psutil.Process(record.pid).children()[0]
    leave_stamp(stamps / "job-a" / NODE_ID, worker.pid)
    (stamps / "job-b" / NODE_ID).mkdir(parents=True)
    end_head(replace(record, node_id=NODE_ID))
    assert list(stamps.iterdir()) == []


def test_no_stamps_go_with_a_head_whose_node_is_unknown(record: HeadRecord, stamps: Path):
    worker = psutil.Process(record.pid).children()[0]
    leave_stamp(stamps / "job-a" / NODE_ID, worker.pid)
    end_head(record)
    assert (stamps / "job-a" / NODE_ID / "slot0-1.0.stamp").exists()


def wait_titled(process: psutil.Process) -> None:
    """Wait for the arguments of a program that has just been started.

    Its parent goes on before the kernel has put them where others read them. Of a real raylet they
    are there: its head has started once that has registered its node.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while not process.cmdline():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, "it has no arguments"
        SYSTEM_CLOCK.sleep(0.001)


def test_a_heads_node_is_read_from_its_raylet():
    with subprocess.Popen([sys.executable, "-c", RAYLET_PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        head = psutil.Process(parent.pid)
        raylet = head.children()[0]
        try:
            wait_titled(raylet)
            cluster = LocalCluster("10.0.0.1:6379", LocalNode(parent, Path("/tmp/tf-x")))
            assert HeadRecord.of(cluster).node_id == NODE_ID
            assert find_node_id(raylet) == ""
        finally:
            raylet.kill()
            head.kill()


def test_a_head_that_has_died_is_told_of(process: subprocess.Popen[bytes]):
    cluster = LocalCluster("10.0.0.1:6379", LocalNode(process, Path("/tmp/tf-x")))
    require_whole(cluster)
    process.kill()
    process.wait()
    with pytest.raises(UnreachableError, match=rf"no process {process.pid} \(ray start\) any more"):
        require_whole(cluster)


@dataclass
class FakeNode:
    pid: int
    temp_dir: Path
    calls: list[str] = field(default_factory=list)

    def kill(self) -> None:
        self.calls.append("kill")


@pytest.fixture
def calls(record: HeadRecord, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to a cluster whose start is faked."""
    node = FakeNode(record.pid, Path(record.temp_dir))

    class FakeCluster:
        address = record.address
        head = node

        def stop(self) -> None:
            node.calls.append("stop")

    def start(*, head_cpus: float, sites: Sites) -> FakeCluster:
        assert sites.address(0) == "127.0.0.1"
        node.calls.append(f"start with {head_cpus:g}")
        return FakeCluster()

    monkeypatch.setattr(LocalCluster, "start", start)
    monkeypatch.setattr(heads.os, "cpu_count", lambda: 2)
    return node.calls


def test_an_own_head_is_recorded_while_it_lasts(record: HeadRecord, calls: list[str]):
    with own_head(WORKERS):
        assert read_head() == record
    assert calls == ["start with 5", "stop"]
    assert not locate_record().exists()


def test_an_own_head_is_killed_where_there_is_no_time(record: HeadRecord, calls: list[str]):
    with pytest.raises(KeyboardInterrupt), own_head(WORKERS):
        raise KeyboardInterrupt
    assert calls == ["start with 5", "kill", "stop"]
    assert not locate_record().exists()


def test_no_own_head_is_started_beside_another(record: HeadRecord, calls: list[str]):
    write_head(record)
    with pytest.raises(ConflictError), own_head(WORKERS):
        pass
    assert calls == []
    assert read_head() == record


def test_of_two_heads_that_start_at_once_one_is_stopped(
    record: HeadRecord, calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    start: Callable[..., LocalCluster] = LocalCluster.start

    def record_another(*, head_cpus: float, sites: Sites) -> LocalCluster:
        ours = psutil.Process()
        write_head(HeadRecord("10.0.0.2:6379", ours.pid, ours.create_time(), "/nowhere"))
        return start(head_cpus=head_cpus, sites=sites)

    monkeypatch.setattr(LocalCluster, "start", record_another)
    with pytest.raises(ConflictError, match=r"10\.0\.0\.2"), own_head(WORKERS):
        pass
    assert calls == ["start with 5", "kill", "stop"]
    assert read_head() is not None


def test_while_a_head_is_started_no_other_one_is(
    record: HeadRecord, calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    start: Callable[..., LocalCluster] = LocalCluster.start

    def try_another(*, head_cpus: float, sites: Sites) -> LocalCluster:
        with pytest.raises(ConflictError, match=f"being started by process {os.getpid()}; "):
            serving_head(1).__enter__()
        return start(head_cpus=head_cpus, sites=sites)

    monkeypatch.setattr(LocalCluster, "start", try_another)
    with own_head(WORKERS):
        assert calls == ["start with 5"]
        with pytest.raises(ConflictError, match="runs already"):
            serving_head(1).__enter__()
    with own_head(WORKERS):  # the one after it finds nothing locked
        assert read_head() == record


def test_who_is_killed_while_a_head_is_started_keeps_nobody_from_it(home: Path, calls: list[str]):
    home.mkdir()
    (home / "head.starting").write_text("a process that was")
    with own_head(WORKERS):
        assert (home / "head.starting").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("cpu", "num_cores", "expected"), [(1, 2, 5), (1, 16, 16), (0, 2, 2), (0.5, 2, 3)]
)
def test_a_head_has_room_for_the_job(cpu: float, num_cores: int, expected: float):
    workers = WORKERS.model_validate(WORKERS.model_dump() | {"resources": {"CPU": cpu}})
    assert count_head_cpus(workers, num_cores) == expected
