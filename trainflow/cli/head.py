"""The head that ``trainflow run`` starts where it is given no cluster, and how others find it.

It is reached from this machine alone, as Ray asks nobody who he is. A record of it lies in
TRAINFLOW_HOME/head.json for as long as it runs: commands in other terminals take the address from
it, and ``trainflow down`` the pid, should the driver have been killed. A record whose process is
gone, or is another one by now, is stale and is removed. Until there is one, whoever starts the head
has TRAINFLOW_HOME/head.starting locked (flock: the kernel gives it up with him). With a head go its
files, and the stamps that its workers had no time to remove from /dev/shm.

Process: driver.  Blocks: while the head starts and stops.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainflow.cli.home import refuse_home
from trainflow.config.job import WorkersConfig
from trainflow.coordination import names
from trainflow.coordination.abandoned_memory import remove_of_node
from trainflow.coordination.liveness import is_alive, wait_gone
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.local_node import find_node_id, find_processes_of
from trainflow.coordination.sites import OwnMachine
from trainflow.errors import ConflictError, CoordinationError, UnreachableError

_END_WITHIN_S = 10.0
_START_TIME_TOLERANCE_S = 2.0  # it is derived from the boot time, which follows the set clock


@dataclass(frozen=True)
class HeadRecord:
    """A head of this machine.

    Attributes:
        address: what drivers connect to.
        pid: of the process whose descendants are the head's node.
        started_at_s: CLOCK_REALTIME when that process started: tells it from a later one's pid.
        temp_dir: its files.
        node_id: Ray's name for its node, after which folders of stamps are named; "" if unknown.
    """

    address: str
    pid: int
    started_at_s: float
    temp_dir: str
    node_id: str = ""

    @classmethod
    def of(cls, cluster: LocalCluster) -> "HeadRecord":
        """Describe the head of a cluster that this process has started."""
        process = psutil.Process(cluster.head.pid)
        return cls(
            cluster.address,
            process.pid,
            process.create_time(),
            str(cluster.head.temp_dir),
            find_node_id(process),
        )

    def find_process(self) -> psutil.Process | None:
        """Return the head's process; None if it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started_at_s) < _START_TIME_TOLERANCE_S
            if is_same and is_alive(process):
                return process
        return None


def locate_record() -> Path:
    """Return where the record of this user's head lies."""
    return names.home() / "head.json"


def read_head() -> HeadRecord | None:
    """Return the head that runs; None, and a stale record is removed, if there is none.

    Raises:
        ConfigError: TRAINFLOW_HOME can't be read.
    """
    try:
        record = HeadRecord(**json.loads(locate_record().read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # written whole or not at all: somebody edited it
        locate_record().unlink(missing_ok=True)
        return None
    except OSError as error:
        raise refuse_home(error) from error
    if record.find_process() is None:
        forget_head(record)
        return None
    return record


def write_head(record: HeadRecord) -> None:
    """Record a head, whole or not at all, unless another one is recorded.

    Raises:
        ConflictError: another one runs.
    """
    path = locate_record()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}")
    try:
        whole.write_text(json.dumps(asdict(record)))
        path.hardlink_to(whole)  # of two runs that start at once, one fails here
    except FileExistsError:
        refuse_second_head()
        raise
    finally:
        whole.unlink(missing_ok=True)


def refuse_second_head() -> None:
    """Raise ConflictError if a head runs already."""
    if other := read_head():
        raise ConflictError(
            f"head: got one that runs already, at {other.address} (pid {other.pid}); expected none "
            f"where no cluster is named; use it with --address {other.address}, or end it and "
            "the runs on it with `trainflow down`"
        )


@contextlib.contextmanager
def _sole_start() -> Generator[None]:
    """Be the only one who starts a head meanwhile.

    Raises:
        ConflictError: another one runs, or is being started.
        ConfigError: TRAINFLOW_HOME can't be written.
    """
    path = names.home() / "head.starting"
    with contextlib.ExitStack() as opened:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(path.open("a+"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            refuse_second_head()  # if it has been recorded by now
            raise ConflictError(
                f"head: got one that is being started by process {path.read_text() or 'unknown'}; "
                "expected none where no cluster is named; wait until it runs and use that by "
                "--address, or end that process"
            ) from error
        except OSError as error:
            raise refuse_home(error) from error
        refuse_second_head()
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def require_whole(cluster: LocalCluster) -> None:
    """Raise UnreachableError if a head that this process has started has died."""
    if (dead := cluster.head.find_dead()) is not None:
        raise UnreachableError(
            f"head: got no process {dead} any more, expected all of the head that was started here "
            f"(pid {cluster.head.pid}); `trainflow down` or somebody else has ended it, or it has "
            "failed: begin again"
        )


def forget_head(record: HeadRecord) -> None:
    """Remove a dead head's files and its record, unless the record is another head's by now."""
    temp_dir = Path(record.temp_dir)
    if (temp_dir / "ray-start.log").exists():
        shutil.rmtree(temp_dir, ignore_errors=True)
    if record.node_id:
        remove_of_node(record.node_id)
    with contextlib.suppress(OSError, ValueError):  # what can't be removed is stale, and seen to be
        if json.loads(locate_record().read_text()).get("pid") == record.pid:
            locate_record().unlink()


def end_head(record: HeadRecord) -> None:
    """Kill a head that another process has started, and all that runs on it.

    Asked to end in order, Ray would wait for workers that train.

    Raises:
        CoordinationError: a process can't be killed.
    """
    tree = find_processes_of(Path(record.temp_dir))  # also those that a dead raylet was starting
    if head := record.find_process():
        tree += [head, *head.children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if alive := wait_gone(tree, _END_WITHIN_S):
        raise CoordinationError(
            f"head: got processes {alive} {_END_WITHIN_S:.0f} s after they were killed; "
            "expected none; look what holds them, and run `trainflow down` again"
        )
    forget_head(record)


@contextlib.contextmanager
def own_head(workers: WorkersConfig) -> Generator[LocalCluster]:
    """Run a head of this machine's own, large enough for the job, while the context lasts.

    A KeyboardInterrupt kills it instead of ending it in order.

    Raises:
        ConflictError: another one runs, or is being started.
        CoordinationError: it did not come up.
    """
    cpus = count_head_cpus(workers, os.cpu_count() or 1)
    with _recorded(lambda: LocalCluster.start(head_cpus=cpus, sites=OwnMachine())) as cluster:
        yield cluster


@contextlib.contextmanager
def serving_head(cpus: float) -> Generator[LocalCluster]:
    """Run a head that takes jobs, as `own_head` does.

    Args:
        cpus: that it declares.

    Raises:
        ConflictError: another one runs, or is being started.
        CoordinationError: it did not come up.
    """
    with _recorded(
        lambda: LocalCluster.start(head_cpus=cpus, takes_jobs=True, sites=OwnMachine())
    ) as cluster:
        yield cluster


@contextlib.contextmanager
def _recorded(start: Callable[[], LocalCluster]) -> Generator[LocalCluster]:
    with contextlib.ExitStack() as last, contextlib.ExitStack() as starting:
        starting.enter_context(_sole_start())
        cluster = start()
        try:
            record = HeadRecord.of(cluster)
            last.callback(forget_head, record)
            write_head(record)
            starting.close()
            yield cluster
            cluster.stop()
        except BaseException:
            cluster.head.kill()
            cluster.stop()
            raise


def count_head_cpus(workers: WorkersConfig, num_cores: int) -> float:
    """Return the CPUs a head declares, whole: its cores, or more if the job's workers won't fit.

    They are Ray's units of accounting: on a machine of few cores workers share them.
    """
    wanted = (workers.target + workers.spares) * workers.resources.CPU
    return float(max(num_cores, math.ceil(wanted)))
