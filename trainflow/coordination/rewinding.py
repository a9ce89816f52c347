"""Have a run go back for its loss, where the job asks for that.

What is decided is recorded before anything is done, and done by whichever coordinator lives then:
at the next boundary of steps, or with the next recovery, whichever comes first, the epoch begins
from the checkpoint.

Process: coordinator.  Thread: its event loop.  Blocks: never.
Fails: as a follower, which is then told no more.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.anomaly_history import BEGAN
from trainflow.coordination.rewind_history import ASKED, REFUSED
from trainflow.coordination.run_record import RunRecord
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.anomalies.rewinding import GoBack, GoOn, decide_rewind


class RunningEpoch(Protocol):
    """The current epoch, as far as this is about it."""

    def pause(self) -> bool:
        """Have members stop at the next step boundary, and begin anew; False if not now."""
        ...


class Stored(Protocol):
    """The checkpoints that there are."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Of all that there are to go on from."""
        ...


class Rewinding:
    """Follows what a run tells of its losses."""

    def __init__(self, job: JobConfig, record: RunRecord, epochs: RunningEpoch, stored: Stored):
        self._limits = job.monitoring.anomalies
        self._record = record
        self._epochs = epochs
        self._stored = stored
        record.follow(self)

    def tick(self) -> None:
        """Have done what is still to be done; called about twice a second."""
        if self._record.rewinds.pending is not None:
            self._epochs.pause()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An anomaly was told of, perhaps."""
        rewinds = self._record.rewinds
        if event["kind"] != BEGAN or rewinds.pending is not None:
            return
        data = event["data"]
        since = {AnomalyKind(data["anomaly"]): int(data["since_step"])}
        decided = decide_rewind(since, self._stored.steps, rewinds.num_asked, self._limits)
        match decided:
            case GoBack(step):
                self._ask(step, event["text"])
            case GoOn(reason):
                text = f"the run does not go back for its loss: {reason}"
                self._record.add_event(REFUSED, text)
            case None:
                pass

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded."""

    def _ask(self, step: int, why: str) -> None:
        newest = self._record.steps_since(self._record.last_step - 1)[-1]
        position = int(newest["consumed_samples"])
        text = (
            f"the run goes back to the checkpoint of step {step}, and passes over the samples up "
            f"to position {position}: {why}"
        )
        self._record.add_event(ASKED, text, to_step=step, position=position)
        self.tick()
