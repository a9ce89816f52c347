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
from trainflow.coordination.anomaly_history import BEGAN, OVER
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
        self._margin = self._limits.rewind_margin * job.training.global_batch_size  # samples
        self._record = record
        self._epochs = epochs
        self._stored = stored
        self._found: dict[AnomalyKind, Mapping[str, Any]] = {}
        record.follow(self)

    def tick(self) -> None:
        """Have done what is still to be done; called about twice a second."""
        if self._record.rewinds.pending is not None:
            self._epochs.pause()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An anomaly was told of, perhaps; a step may have several."""
        if event["kind"] == BEGAN:
            self._found[AnomalyKind(event["data"]["anomaly"])] = event
        elif event["kind"] == OVER:
            self._found.pop(AnomalyKind(event["data"]["anomaly"]), None)

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded, and who follows it before this has told what is odd."""
        found, self._found = self._found, {}
        rewinds = self._record.rewinds
        if not found or rewinds.pending is not None:
            return
        since = {kind: int(event["data"]["since_step"]) for kind, event in found.items()}
        decided = decide_rewind(since, self._stored.steps, rewinds.num_asked, self._limits)
        match decided:
            case GoBack(step):
                why = "; ".join(event["text"] for event in found.values())
                self._ask(step, report.consumed_samples + self._margin, why)
            case GoOn(reason):
                text = f"the run does not go back for its loss: {reason}"
                self._record.add_event(REFUSED, text)
            case None:
                pass

    def _ask(self, step: int, position: int, why: str) -> None:
        text = (
            f"the run goes back to the checkpoint of step {step}, and passes over the samples up "
            f"to position {position}: {why}"
        )
        self._record.add_event(ASKED, text, to_step=step, position=position)
        self.tick()
