"""What the benchmark of modes trains: each rank writes down the losses, and what memory it took.

Process: every worker.  Threads: training, and one that samples the process's memory.
"""

import json
import threading
from pathlib import Path

from pydantic import BaseModel

from benchmarks import workload
from trainflow import Session
from trainflow.clock import SYSTEM_CLOCK

_SAMPLE_EVERY_S = 0.002


class Args(BaseModel):
    """Where the findings go, and what is trained."""

    log_dir: Path
    size: workload.Size


class PeakMemory:
    """The most private memory that this process has had resident, in bytes, since `start`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.is_set():
            self.bytes = max(self.bytes, private_bytes())
            SYSTEM_CLOCK.sleep(_SAMPLE_EVERY_S)


def private_bytes() -> int:
    """Return what of this process's memory is resident and nobody else's: no shared memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("got no RssAnon in /proc/self/status, expected it: Linux tells so since 4.5")


def train(session: Session, args: Args) -> None:
    """Train to the end, and write down what there is to be told."""
    at_first = private_bytes()
    model = session.prepare(
        lambda: workload.build_model(seed=0, size=args.size), workload.make_optimizer
    )
    peak = PeakMemory()
    losses: list[float] = []
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                loss = workload.loss_of(model, batch.inputs["input_ids"])
                step.backward(loss, weight=batch.num_targets)
            losses.append(step.commit().loss)
            if len(losses) == 1:  # the first step builds the model whole, once
                peak.start()
    peak.stop()
    found = {"losses": losses, "peak_bytes": peak.bytes - at_first}
    (args.log_dir / f"rank-{session.rank}.json").write_text(json.dumps(found))
