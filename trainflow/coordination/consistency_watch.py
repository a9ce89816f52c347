"""Tell of ranks that came to other bits than the others, and give up those who are at fault.

The step in which they did was applied on none, and comes again.

Process: coordinator.  Thread: its event loop.  Fails: never; the run goes on without it, and
says so.
"""

import asyncio

from trainflow.computation.reports import RanksDiffer
from trainflow.coordination.consistency import decide_losses, describe_difference
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.monitoring.detectors import Detector

_KIND = "ranks_differ"
_AGAIN_AFTER_S = 0.01  # less than an epoch that broke is left for the next one


class ConsistencyWatch:
    """Acts on what ranks tell; what an earlier coordinator was told still counts."""

    def __init__(
        self,
        pool: WorkerPool,
        control: EpochControl,
        record: RunRecord,
        superior: Superior,
        guard: DetectorGuard,
    ):
        self._pool = pool
        self._control = control
        self._record = record
        self._superior = superior
        self._guard = guard

    def on_difference(self, message: RanksDiffer) -> None:
        """Ranks tell of each try of a step: each that saw it, or again if it was not answered."""
        epoch = self._control.epoch
        if epoch is None or message.epoch > epoch:
            # Ranks are fast, or had no coordinator: who has these ranks is known in a moment.
            loop = asyncio.get_running_loop()
            loop.call_later(_AGAIN_AFTER_S, self.on_difference, message)
            return
        if message.epoch < epoch:
            return  # who had these ranks then has been judged by what came of that epoch
        self._guard.look(Detector.DIFFERENCES, lambda: self._judge_once(message))

    def _judge_once(self, message: RanksDiffer) -> None:
        if not self._is_told(message):
            self._judge(message)

    def _is_told(self, message: RanksDiffer) -> bool:
        """Whether it was judged before: an epoch ends with the first difference."""
        told = (each["data"] for each in self._record.lasting_events if each["kind"] == _KIND)
        return any(data.get("epoch") == str(message.epoch) for data in told)

    def _judge(self, message: RanksDiffer) -> None:
        members = self._control.members
        in_spot_check = message.in_spot_check
        text = describe_difference(
            message.ranks, len(members), message.step, in_spot_check=in_spot_check
        )
        losses = decide_losses(
            message.ranks, members, self._find_earlier(), in_spot_check=in_spot_check
        )
        workers = [members[rank] for rank in message.ranks]
        self._record.add_event(
            _KIND,
            f"{text} ({', '.join(workers)}); it is done again",
            step=message.step,
            epoch=str(message.epoch),
            ranks=list(message.ranks),
            workers=workers,
            nodes=sorted(set(self._pool.nodes_of(workers).values())),
            in_spot_check=in_spot_check,
            no_majority=len(workers) == len(members),
        )
        if losses:
            self._superior.lose(losses, f"its gradients are wrong: {text}")

    def _find_earlier(self) -> list[str]:
        """Return the workers whose sums differed before, once for each time."""
        told = [each["data"] for each in self._record.lasting_events if each["kind"] == _KIND]
        return [
            worker
            for data in told
            if not data["in_spot_check"] and not data["no_majority"]
            for worker in data["workers"]
        ]
