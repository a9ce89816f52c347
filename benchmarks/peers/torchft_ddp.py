"""torchft 0.2.0's recovery: DDP with its Manager and Lighthouse, killed and restarted.

    python -m benchmarks.peers.torchft_ddp --kills 3

Process: the harness, which also hosts the Lighthouse and supervises the replicas as torchelastic
would: one that dies is started again.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path

from torchft.coordination import LighthouseServer

from benchmarks.peers.events import EventTail
from benchmarks.peers.killing import Harness, KillPlan, execute_kills
from benchmarks.peers.samples import Milestone, RecoverySample, summarize, to_samples
from benchmarks.peers.torchft_replica import ReplicaSettings, run_replica
from trainflow.clock import SYSTEM_CLOCK

MILESTONES = (
    Milestone("seen", "error", min),
    Milestone("freed", "error"),
    Milestone("quorum", "quorum"),
    Milestone("groups", "group"),
)


@dataclass(frozen=True)
class TorchftSettings:
    """One way to set torchft up.

    Attributes:
        replica: What each replica is told.
        num_replicas: Members and spares; torchft's spares step along and contribute zeros.
        heartbeat_timeout_ms: A dead replica holds the next quorum up until its last heartbeat is
            this old.
        join_timeout_ms: The longest wait for replicas that heartbeat but have not joined.
        quorum_tick_ms: How often the Lighthouse looks.
    """

    replica: ReplicaSettings
    num_replicas: int
    heartbeat_timeout_ms: int = 250
    join_timeout_ms: int = 10_000
    quorum_tick_ms: int = 20


# Tuned on steps of .2 s: a shorter collective timeout aborts healthy steps, and even this one does
# while the machine has other work; a shorter heartbeat timeout gains nothing.
FIXED_WITH_SPARES = TorchftSettings(
    replica=ReplicaSettings(min_replicas=3, fixed_with_spares=True, collective_timeout_s=0.3),
    num_replicas=4,
)
# The other mode, for comparison: the world shrinks until the replacement is up, and the steps in
# between see a smaller batch.
DYNAMIC = TorchftSettings(
    replica=ReplicaSettings(min_replicas=2, fixed_with_spares=False, collective_timeout_s=0.3),
    num_replicas=3,
)


@dataclass
class ReplicaSupervisor:
    """Starts the replicas and, like torchelastic, starts each again that has died."""

    settings: TorchftSettings
    lighthouse: str
    work_dir: Path
    processes: dict[int, SpawnProcess] = field(default_factory=dict)

    def restart_dead(self) -> None:
        """Start every replica that is not running."""
        for slot in range(self.settings.num_replicas):
            process = self.processes.get(slot)
            if process is None or not process.is_alive():
                self.processes[slot] = self._start(slot)

    def _start(self, slot: int) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=run_replica,
            args=(slot, self.settings.replica, self.lighthouse, self.work_dir),
            daemon=True,
        )
        process.start()
        return process

    def kill_all(self) -> None:
        """SIGKILL every replica and reap it."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join()


@contextmanager
def running_lighthouse(settings: TorchftSettings) -> Generator[str]:
    """Host a Lighthouse in this process; yields its address."""
    server = LighthouseServer(
        bind="[::]:0",
        min_replicas=settings.replica.min_replicas,
        join_timeout_ms=settings.join_timeout_ms,
        quorum_tick_ms=settings.quorum_tick_ms,
        heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


def measure(
    num_kills: int, seed: int, work_dir: Path, settings: TorchftSettings = FIXED_WITH_SPARES
) -> list[RecoverySample]:
    """Kill a member ``num_kills`` times, at seeded random phases of its step.

    Raises:
        TimeoutError: torchft did not settle or recover in time; see the logs in ``work_dir``.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    tail = EventTail(work_dir)
    with running_lighthouse(settings) as lighthouse:
        supervisor = ReplicaSupervisor(settings, lighthouse, work_dir)
        try:
            kills = execute_kills(
                KillPlan(num_kills, seed, num_processes=settings.num_replicas),
                Harness(tail, SYSTEM_CLOCK, supervise=supervisor.restart_dead),
            )
        finally:
            supervisor.kill_all()
            tail.close()
    return to_samples(tail.events, kills, MILESTONES)


def main() -> None:
    """Measure alone and print the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=("fixed", "dynamic"), default="fixed")
    arguments = parser.parse_args()
    settings = FIXED_WITH_SPARES if arguments.mode == "fixed" else DYNAMIC
    work_dir = Path(tempfile.mkdtemp(prefix="torchft-"))
    samples = measure(arguments.kills, arguments.seed, work_dir, settings)
    print(summarize(f"torchft {arguments.mode}", samples))


if __name__ == "__main__":
    main()
