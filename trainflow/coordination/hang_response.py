"""Who hangs is lost, once every rank has shown where it stands.

Process: coordinator.  Thread: its event loop; what takes time is a task.
Fails: never where it judges; the run goes on without it, and says so.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_detection import Hang
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.stall_watch import StallWatch
from trainflow.coordination.superior import Superior
from trainflow.coordination.timeout_budget import START_LIMIT_S, Limit
from trainflow.epochs import EpochId
from trainflow.monitoring.detectors import Detector

_DEADLOCK = "every member waits for another"
_OVER = "hang_over"
_WAITED_FOR = "waited_for"


class HangResponse:
    """Acts on what a `HangWatch` finds, each hang once."""

    def __init__(
        self,
        watch: HangWatch,
        evidence: HangEvidence,
        control: EpochControl,
        guard: DetectorGuard,
        superior: Superior,
        stalls: StallWatch,
    ):
        self._stalls = stalls
        self._told_after_s = START_LIMIT_S
        self._watch = watch
        self._evidence = evidence
        self._control = control
        self._guard = guard
        self._superior = superior
        # Their verdict is given; heartbeats that come while stacks are awaited tell of them again.
        self._judged: set[str | EpochId] = set()
        self._shown: set[EpochId] = set()
        self._waited_for: frozenset[str] = frozenset()
        self._num_looks = 0

    @property
    def told_after_s(self) -> float:
        """Seconds without progress after which Keepers tell of a worker at once.

        The last that could be derived, if it can't be now: heartbeats are answered all the same.
        """
        self._told_after_s = self._guard.ask(
            Detector.HANGS, lambda: self._stalls.told_after_s, self._told_after_s
        )
        return self._told_after_s

    @property
    def stop_patience_s(self) -> float:
        """How long a commit is waited for in which all are to stop.

        As long as a start may take, if it can't be told: who stops sooner isn't waited for.
        """
        return self._guard.ask(Detector.HANGS, lambda: self._watch.stop_patience_s, START_LIMIT_S)

    def look(self) -> None:
        """See who hangs by now; called with each heartbeat, which is answered all the same."""
        self._guard.look(Detector.HANGS, self._look)

    def _look(self) -> None:
        if not self._control.is_open:
            return  # it isn't known yet who the members are, nor so to whom data doesn't come
        left_for_s = self._control.left_for_s()
        forming = self._control.attempts.epoch
        found = self._stalls.leave_out(self._watch.find_hung(left_for_s, forming))
        hung = {each: found[each] for each in found if each not in self._judged}
        if hung:
            self._judged |= hung.keys()
            self._guard.start(Detector.HANGS, partial(self._end, hung))
        self._num_looks += 1
        if self._num_looks % max(1, len(self._control.members)) == 0:  # not with each of very many
            self._note_waited_for(self._watch.find_waited_for(self._control.members))
        epoch = self._control.epoch
        if epoch is None or left_for_s:
            return
        if self._watch.is_deadlocked(self._control.members, epoch):
            self._on_deadlock(epoch)

    def _note_waited_for(self, waited_s: Mapping[str, float]) -> None:
        """Tell of them once: nothing is done, as code between commits may take what it likes."""
        before, self._waited_for = self._waited_for, frozenset(waited_s)
        if self._waited_for - before:
            self._guard.start(Detector.HANGS, partial(self._tell_waited_for, waited_s))

    async def _tell_waited_for(self, waited_s: Mapping[str, float]) -> None:
        members, step = self._control.members, self._watch.last_step
        shown = await self._evidence.gather(members, list(waited_s))
        ranks = [members.index(each) for each in waited_s if each in members]
        named = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        text = (
            f"all others wait for {named}, in the job's own code between two commits for "
            f"{max(waited_s.values()):.0f} s: such code may take as long as it likes. If it never "
            "ends, kill its process, and a spare takes the rank"
        )
        data = {"workers": list(waited_s), "ranks": ranks, "waited_s": max(waited_s.values())}
        self._evidence.add_event(_WAITED_FOR, text, shown, **data, after_step=step)

    def _on_deadlock(self, epoch: EpochId) -> None:
        if epoch in self._shown:
            self._control.break_epoch(epoch, _DEADLOCK)  # it may not have been possible before
        elif epoch not in self._judged:
            self._judged.add(epoch)
            self._guard.start(Detector.HANGS, partial(self._break, epoch))

    @contextmanager
    def _found_again(self, *whom: str | EpochId) -> Generator[None]:
        """Have a verdict that can't be carried out be found again with the next heartbeat."""
        try:
            yield
        except Exception:
            self._judged.difference_update(whom)
            raise

    async def _end(self, hung: Mapping[str, Hang]) -> None:
        with self._found_again(*hung):
            await self._end_shown(hung)

    async def _end_shown(self, hung: Mapping[str, Hang]) -> None:
        after_step = self._watch.last_step
        shown = await self._evidence.gather(self._control.members, list(hung))
        moved = self._watch.find_moved(hung)
        for worker_id, hang in hung.items():
            if not self._watch.knows(worker_id):
                continue  # it died meanwhile
            data = {
                "worker": worker_id,
                "stands_in": str(hang.kind),
                "epoch": str(hang.epoch),
                "after_step": after_step,
                "stood_s": hang.stood_s,
                **_describe(hang.limit),
            }
            if worker_id in moved:
                self._judged.discard(worker_id)
                text = f"{worker_id} is not killed: it has gone on since this was seen: {hang.text}"
                self._evidence.add_event(_OVER, text, shown, **data)
                continue
            self._evidence.add_event("hang", f"{worker_id}: {hang.text}", shown, **data)
            self._superior.lose([worker_id], f"hung: {hang.text}")

    async def _break(self, epoch: EpochId) -> None:
        with self._found_again(epoch):
            await self._break_shown(epoch)

    async def _break_shown(self, epoch: EpochId) -> None:
        after_step = self._watch.last_step
        shown = await self._evidence.gather(self._control.members)
        if self._control.epoch != epoch or self._control.left_for_s():
            return  # it is given up by now
        limit = self._watch.wait_limit(epoch)
        data = {"epoch": str(epoch), "after_step": after_step, **_describe(limit)}
        if not self._watch.is_deadlocked(self._control.members, epoch):
            self._judged.discard(epoch)
            text = f"epoch {epoch} goes on: {_DEADLOCK} no more"
            self._evidence.add_event(_OVER, text, shown, **data)
            return
        self._shown.add(epoch)
        self._evidence.add_event("deadlock", f"{_DEADLOCK} ({limit})", shown, **data)
        self._control.break_epoch(epoch, _DEADLOCK)


def _describe(limit: Limit) -> dict[str, Any]:
    return {"limit_s": limit.value_s, "limit_basis": limit.basis}
