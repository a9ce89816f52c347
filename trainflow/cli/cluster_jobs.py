"""Jobs as a cluster knows them: their coordinators are asked, and what has ended is unknown.

Process: driver.  Blocks: until the cluster answers, some seconds at most.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainflow.cli.head import locate_record, read_head
from trainflow.cli.jobs import WORKER_COLUMNS, Profiled, Shown, Wanted
from trainflow.cli.leaving import leave_at_once_in_the_end
from trainflow.cli.progress import Answer, describe_event
from trainflow.cli.tables import format_table, format_value
from trainflow.coordination import driver
from trainflow.coordination.driver import Run
from trainflow.coordination.profile_list import Trace, list_profiles
from trainflow.errors import ConfigError, CoordinationError, JobNotFoundError, UnreachableError

RUN_COLUMNS = {
    "JOB_ID": "job_id",
    "STATE": "state",
    "STEP": "step",
    "OF": "max_steps",
    "WORLD": "world_size",
    "SPARES": "spares",
    "FAILURES": "failures",
}
_EVENTS_SHOWN = 5
_PIECE_BYTES = 1024 * 1024


class ClusterJobs:
    """The jobs of the cluster that this process is connected to."""

    def list(self, wanted: Wanted) -> Shown:
        """List those whose coordinator is there; it leaves when its result was read."""
        if wanted.labels:
            raise ConfigError(
                "--label: got it with a cluster, expected the service, which knows labels; name it "
                "with --server, or leave --label out"
            )
        rows = [row for row in list_runs() if _is_wanted(row, wanted)][: wanted.limit]
        return Shown(rows, format_table(rows, RUN_COLUMNS))

    def status(self, job_id: str | None) -> Shown:
        """Ask a job's coordinator where it stands."""
        answer = choose_run(job_id).status()
        return Shown(answer, format_status(answer))

    def workers(self, job_id: str | None) -> Shown:
        """Ask a job's coordinator for its workers."""
        rows = choose_run(job_id).workers()
        return Shown({"workers": rows}, format_table(rows, WORKER_COLUMNS))

    def stop(self, job_id: str | None) -> Shown:
        """Have a job's coordinator stop it."""
        chosen = choose_run(job_id)
        chosen.stop()
        answer = {"job_id": chosen.job_id, "stopping": True}
        return Shown(answer, f"{chosen.job_id} stops at its next step boundary")

    def begin_profile(self, job_id: str | None, num_steps: int, ranks: Sequence[int]) -> Profiled:
        """Have a job's coordinator ask ranks to record steps."""
        chosen = choose_run(job_id)
        profile = chosen.profile(num_steps, ranks)
        return Profiled(chosen.job_id, chosen.status()["directory"], profile)

    def find_profile(self, job_id: str | None, number: int) -> Profiled:
        """Ask a job's coordinator what it has heard of a profile."""
        chosen = choose_run(job_id)
        status = chosen.status()
        known = {each.number: each for each in list_profiles(status["events"])}
        return Profiled(chosen.job_id, status["directory"], known.get(number))

    def read_trace(self, profiled: Profiled, trace: Trace) -> Iterator[bytes]:
        """Yield a trace, where this machine sees the job's folder."""
        path = Path(profiled.directory) / trace.file
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece
        except FileNotFoundError as error:
            raise UnreachableError(
                f"trace: got none at {path}, expected it there: this machine does not see the "
                "folder of the job's record; ask the service with --server, or copy it from there"
            ) from error


def _is_wanted(row: Answer, wanted: Wanted) -> bool:
    is_in_state = not wanted.states or row["state"] in wanted.states
    return is_in_state and wanted.name in {None, row["name"]}


@contextmanager
def connected(address: str | None) -> Generator[None]:
    """Connect to the cluster at ``address``, or to the head of this machine if it is None.

    Raises:
        UnreachableError: there is none.
    """
    try:
        driver.connect(find_address(address))
        yield
    finally:
        leave_at_once_in_the_end()
        driver.disconnect()


def find_address(given: str | None) -> str:
    """Return the given address, else that of the recorded head; raises UnreachableError."""
    if given:
        return given
    if head := read_head():
        return head.address
    raise UnreachableError(
        f"address: got none, and no head of this machine runs by {locate_record()}; expected a Ray "
        "cluster: give --address, or set TRAINFLOW_ADDRESS or RAY_ADDRESS"
    )


def choose_run(job_id: str | None) -> Run:
    """Return the named run; the only one there is, if no name is given.

    Raises:
        JobNotFoundError: no such run, or none at all.
        ConfigError: a name is needed to tell several apart.
    """
    if job_id is not None:
        return driver.find_run(job_id)
    match driver.list_runs():
        case []:
            raise JobNotFoundError(
                "JOB_ID: got none, and no run is on this cluster; expected one: start it with "
                "`trainflow run`, or name another cluster with --address"
            )
        case [only]:
            return driver.find_run(only)
        case several:
            raise ConfigError(
                f"JOB_ID: got none; expected one of {', '.join(several)}: name the run"
            )


def list_runs() -> list[Answer]:
    """Return the status of each run on the cluster, those that end meanwhile left out."""
    found: list[Answer] = []
    for job_id in driver.list_runs():
        try:
            found.append(driver.find_run(job_id).status())
        except CoordinationError:
            continue
    return found


def format_status(status: Answer) -> str:
    """Return a run's status as text: figures first, then its newest events."""
    lists = {"events", "steps", "ending", "stragglers", "slow_network", "anomalies", "goodput"}
    lists |= {"detectors_off"}
    figures = {key: value for key, value in status.items() if key not in lists}
    slow = [f"rank {each['rank']}, {each['ratio']:.1f} times" for each in status["stragglers"]]
    figures["stragglers"] = "; ".join(slow) or None
    links = [" - ".join(each["hosts"]) for each in status["slow_network"]]
    figures["slow_network"] = "; ".join(links) or None
    odd = [f"{each['anomaly']} since step {each['since_step']}" for each in status["anomalies"]]
    figures["anomalies"] = "; ".join(odd) or None
    unwatched = [each["unwatched"] for each in status["detectors_off"]]
    figures["not_watched"] = "; ".join(unwatched) or None
    goodput = status["goodput"] or {"ratio": None}
    figures["goodput"] = None if goodput["ratio"] is None else f"{goodput['ratio']:.1%}"
    width = max(map(len, figures))
    lines = [f"{key.ljust(width)}  {format_value(value)}" for key, value in figures.items()]
    lines += [f"  {describe_event(event)}" for event in status["events"][-_EVENTS_SHOWN:]]
    return "\n".join(lines)
