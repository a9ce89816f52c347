"""Data that comes to nobody is waited for: no worker is killed for it before its time, nor all.

Process: coordinator.  Thread: its event loop; what takes time is a task.  Fails: as it may; see
`detector_guard`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from trainflow.clock import Clock
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_detection import Hang, HangKind
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.timeout_budget import Limit
from trainflow.monitoring.detectors import Detector

_PATIENCE = "that of data that comes to nobody, for any of those who wait for it"
KIND, LAST, OVER = "data_stall", "data_stall_last", "data_stall_over"


class StallWatch:
    """Tells those who hang in reading from those to whom no data comes."""

    def __init__(
        self,
        watch: HangWatch,
        memory: MemoryTier,
        control: EpochControl,
        evidence: HangEvidence,
        guard: DetectorGuard,
        clock: Clock,
    ):
        self._watch = watch
        self._memory = memory
        self._control = control
        self._evidence = evidence
        self._guard = guard
        self._clock = clock
        self._held_up: frozenset[str] = frozenset()  # in the stall that was told; none: in none
        self._were_held_up: frozenset[str] = frozenset()  # at any time in that
        self._waited_s = 0.0
        self._seen_at_s = -math.inf  # that it is not one worker's own
        self._next_at_s = -math.inf  # when another one may be killed
        self._is_last_told = False

    @property
    def told_after_s(self) -> float:
        """Seconds without progress after which Keepers tell of a worker at once.

        Of those to whom no data comes that is known.
        """
        return math.inf if self._held_up else self._watch.timeout_s

    def leave_out(self, hung: Mapping[str, Hang]) -> Mapping[str, Hang]:
        """Return who of those that hang is to be killed; where no data comes, one at a time.

        Args:
            hung: what is judged of each worker by itself.
        """
        if not self._held_up and all(each.kind is not HangKind.STEP for each in hung.values()):
            return hung
        held_up, reading = self._watch.find_held_up(self._control.members)
        now_s = self._clock.monotonic_s()
        if held_up:
            self._seen_at_s = now_s
        elif now_s <= self._seen_at_s + self._watch.timeout_s:
            held_up = self._held_up & reading.keys()  # who is left of them may be about to go on
        late = {each for each in held_up if each in hung and hung[each].kind is HangKind.STEP}
        self._note(held_up if late or self._held_up else frozenset(), reading)
        chosen, remaining = self._choose(late, reading), dict(hung)
        for each in late:
            hang = remaining.pop(each)
            if each == chosen:
                limit = Limit(self._watch.stall_s, _PATIENCE)
                remaining[each] = replace(hang, limit=limit)
        return remaining

    def _choose(self, late: set[str], reading: Mapping[str, float]) -> str | None:
        """Return whom to kill now: its connections may be dead where those of a new one are not.

        The last that holds the newest state never is.
        """
        patience_s, now_s = self._watch.stall_s, self._clock.monotonic_s()
        if now_s < self._next_at_s or all(reading[each] <= patience_s for each in late):
            return None
        ranked = [each for each in self._control.members if self._watch.knows(each)]
        chosen = max(late, key=ranked.index)
        if len(ranked) == 1 and not self._memory.holds(self._watch.last_step):
            self._tell_last(chosen)
            return None
        self._next_at_s = now_s + patience_s
        return chosen

    def _note(self, held_up: frozenset[str], reading: Mapping[str, float]) -> None:
        """Take who is held up now, and tell of a stall's begin and end."""
        before, self._held_up = self._held_up, held_up
        if held_up:
            self._waited_s = max(reading[each] for each in held_up)
            self._were_held_up |= held_up
        if held_up and not before:
            self._is_last_told, self._were_held_up = False, held_up
            self._guard.start(Detector.HANGS, partial(self._tell, held_up, self._waited_s))
        elif before and not held_up:
            living = {each for each in self._were_held_up if self._watch.knows(each)}
            if living - reading.keys():  # else whoever is left hangs
                text = f"data comes again, for which ranks had waited for {self._waited_s:.1f} s"
                self._evidence.add_event(OVER, text, waited_s=self._waited_s)

    async def _tell(self, held_up: frozenset[str], waited_s: float) -> None:
        members, patience_s = self._control.members, self._watch.stall_s
        ranks = [rank for rank, each in enumerate(members) if each in held_up]
        shown = await self._evidence.gather(members)
        named = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        text = (
            f"no data has come to {named} for {waited_s:.1f} s: where it comes from is to blame, "
            f"and is waited for. After {patience_s:.0f} s one worker is killed at a time"
        )
        data = {"ranks": ranks, "waited_s": waited_s, "patience_s": patience_s}
        step = self._watch.last_step
        self._evidence.add_event(KIND, text, shown, **data, after_step=step)

    def _tell_last(self, worker_id: str) -> None:
        if self._is_last_told:
            return
        self._is_last_told = True
        step = self._watch.last_step
        text = (
            f"{worker_id} alone holds the state of step {step}, and is not killed, however long no "
            "data comes to it. If you kill it, the run goes on from what was kept, or ends"
        )
        self._evidence.add_event(
            LAST, text, worker=worker_id, after_step=step, waited_s=self._waited_s
        )
