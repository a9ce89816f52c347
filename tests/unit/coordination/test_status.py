"""What a run looks like from outside."""

from tests.unit.coordination.fakes import describe
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.status import list_workers
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.epochs import EpochId, Phase


class Pool(WorkerPool):
    def __init__(self, *entries: WorkerEntry):
        self.entries = {entry.worker_id: entry for entry in entries}


class Nodes(NodeWatch):
    def __init__(self, progress: dict[str, Progress]):
        self._progress = {"node": progress}


def rehearsing(pid: int) -> Progress:
    return Progress(pid, 1, EpochId(0, 0), Phase.COMPUTE, 0.1, 0.1)


def test_a_worker_that_starts_shows_its_pid_and_phase_and_no_step():
    pool = Pool(WorkerEntry("slot0-1.0", None), WorkerEntry("slot1-1.1", None))
    rehearses, unheard = list_workers(pool, (), Nodes({"slot0-1.0": rehearsing(42)}))
    assert (rehearses["state"], rehearses["pid"]) == ("starting", 42)
    assert (rehearses["phase"], rehearses["step"]) == ("compute", None)
    assert (unheard["pid"], unheard["phase"], unheard["step"]) == (None, None, None)


def test_members_show_how_long_they_compute_and_spares_nothing():
    ids = ("slot0-1.0", "slot1-1.1")
    pool = Pool(*(WorkerEntry(each, None, describe(each), compute_s=0.25) for each in ids))
    member, spare = list_workers(pool, ids[:1], Nodes({}))
    assert (member["rank"], member["compute_s"]) == (0, 0.25)
    assert (spare["rank"], spare["compute_s"]) == (None, None)


def test_a_warm_worker_shows_its_step():
    spare = WorkerEntry("slot0-1.0", None, describe("slot0-1.0"))
    (row,) = list_workers(Pool(spare), (), Nodes({"slot0-1.0": rehearsing(42)}))
    assert (row["state"], row["step"], row["pid"]) == ("spare", 1, describe("slot0-1.0").pid)
