"""Who hangs is lost, once every rank has shown where it stands.

Process: coordinator.  Thread: its event loop; what takes time is a task.
Fails: never where it judges; the run goes on without it.
"""

import logging
from collections.abc import Mapping

from trainflow.coordination.background import Background
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_detection import Hang
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.superior import Superior
from trainflow.epochs import EpochId

logger = logging.getLogger(__name__)

_DEADLOCK = "every member waits for another"


class HangResponse:
    """Acts on what a `HangWatch` finds, each hang once."""

    def __init__(
        self,
        watch: HangWatch,
        evidence: HangEvidence,
        control: EpochControl,
        background: Background,
        superior: Superior,
    ):
        self._watch = watch
        self._evidence = evidence
        self._control = control
        self._background = background
        self._superior = superior
        # Their verdict is given; heartbeats that come while stacks are awaited tell of them again.
        self._judged: set[str | EpochId] = set()
        self._shown: set[EpochId] = set()
        self._has_failed = False

    def look(self) -> None:
        """See who hangs by now; called with each heartbeat, which is answered all the same."""
        try:
            self._look()
            self._has_failed = False
        except Exception:  # a detector that fails stops nothing
            if not self._has_failed:
                logger.exception("hangs could not be looked for")
            self._has_failed = True

    def _look(self) -> None:
        left_for_s = self._control.left_for_s()
        found = self._watch.find_hung(left_for_s)
        hung = {each: found[each] for each in found if each not in self._judged}
        if hung:
            self._judged |= hung.keys()
            self._background.start(self._end(hung))
        epoch = self._control.epoch
        if epoch is None or left_for_s:
            return
        if self._watch.is_deadlocked(self._control.members, epoch):
            self._on_deadlock(epoch)

    def _on_deadlock(self, epoch: EpochId) -> None:
        if epoch in self._shown:
            self._control.break_epoch(epoch, _DEADLOCK)  # it may not have been possible before
        elif epoch not in self._judged:
            self._judged.add(epoch)
            self._background.start(self._break(epoch))

    async def _end(self, hung: Mapping[str, Hang]) -> None:
        after_step = self._watch.last_step
        shown = await self._evidence.gather(self._control.members, list(hung))
        for worker_id, hang in hung.items():
            if not self._watch.knows(worker_id):
                continue  # it died meanwhile
            data = {
                "worker": worker_id,
                "stands_in": str(hang.kind),
                "epoch": str(hang.epoch),
                "after_step": after_step,
            }
            self._evidence.add_event("hang", f"{worker_id}: {hang.text}", shown, **data)
            self._superior.lose([worker_id], f"hung: {hang.text}")

    async def _break(self, epoch: EpochId) -> None:
        after_step = self._watch.last_step
        shown = await self._evidence.gather(self._control.members)
        self._shown.add(epoch)
        data = {"epoch": str(epoch), "after_step": after_step}
        self._evidence.add_event("deadlock", _DEADLOCK, shown, **data)
        self._control.break_epoch(epoch, _DEADLOCK)
