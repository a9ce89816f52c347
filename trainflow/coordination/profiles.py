"""Have ranks of a run record some steps, and note in its record what comes of it.

Process: coordinator.  Thread: its event loop; a call waits until the ranks that it asks have
answered.  Blocks: to list one local folder.  Fails: never; who can't be asked is told of.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from ray.exceptions import RayError

from trainflow.computation.profile_order import (
    FOLDER,
    MAX_RANKS,
    MAX_STEPS,
    ProfileFailed,
    ProfileOrder,
)
from trainflow.config.job import JobConfig
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.profile_list import ASKED, list_profiles
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool

REFUSED, IS_CONFLICT = "refused", "is_conflict"
_ANSWERS_WITHIN_S = 8.0
_NOTICE_S = 1.0
_STEPS_AHEAD = 3  # the one under way, and one to warm up in
_RECENT_STEPS = 50

Json = dict[str, Any]


class Profiles:
    """Those of one run."""

    def __init__(self, job: JobConfig, pool: WorkerPool, control: EpochControl, record: RunRecord):
        self._job = job
        self._pool = pool
        self._control = control
        self._record = record

    async def begin(self, num_steps: int, ranks: Sequence[int]) -> Json:
        """Have ranks record steps, all of them the same.

        Args:
            num_steps: how many.
            ranks: of the current epoch.

        Returns:
            The profile as JSON; or why there is none, under `REFUSED`, and under `IS_CONFLICT`
            whether that is for what the run is at, and may pass.
        """
        wrong = find_wrong(num_steps, ranks, len(self._control.members))
        if wrong:
            return {REFUSED: wrong, IS_CONFLICT: False}
        known = list_profiles(self._record.events_since(0))
        first_step = plan_first_step(
            self._record.last_step, self._record.step_times_s(_RECENT_STEPS)
        )
        untimely = self._find_untimely(first_step)
        if not all(each.is_over for each in known):
            untimely = f"profile {known[-1].number} is recorded: wait until its traces are written"
        if untimely:
            return {REFUSED: untimely, IS_CONFLICT: True}
        written = find_written(self._record.directory)
        number = 1 + max([*written, *(each.number for each in known)], default=0)
        folder = str(self._record.directory.absolute())
        orders = {
            self._control.members[rank]: ProfileOrder(number, rank, first_step, num_steps, folder)
            for rank in ranks
        }
        self._note_asked(orders)
        await asyncio.gather(*(self._ask(worker_id, order) for worker_id, order in orders.items()))
        return list_profiles(self._record.events_since(0))[-1].describe()

    def _find_untimely(self, first_step: int) -> str:
        """Return why the run can't record steps now; empty if it can."""
        max_steps = self._job.training.max_steps
        if self._control.epoch is None or not self._control.is_whole:
            return f"the run is {self._control.state}: wait until its ranks train"
        if first_step > max_steps:
            return f"the run ends with step {max_steps}, before ranks could begin: it is too late"
        return ""

    def _note_asked(self, orders: dict[str, ProfileOrder]) -> None:
        """Record what is asked, before anybody can answer."""
        order = next(iter(orders.values()))
        which = ", ".join(str(each.rank) for each in orders.values())
        self._record.add_event(
            ASKED,
            f"profile {order.number}: ranks {which} record {order.num_steps} steps from step "
            f"{order.first_step}",
            number=order.number,
            num_steps=order.num_steps,
            first_step=order.first_step,
            ranks=[{"rank": each.rank, "worker": worker} for worker, each in orders.items()],
        )

    async def _ask(self, worker_id: str, order: ProfileOrder) -> None:
        entry = self._pool.entries.get(worker_id)
        trouble = "its worker is gone"
        if entry is not None:
            try:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    trouble = await entry.actor.profile.remote(order)
            except (RayError, TimeoutError) as error:
                trouble = f"its worker does not answer ({type(error).__name__})"
        if trouble:
            self._record.add_report(ProfileFailed(order.number, order.rank, trouble))


def find_written(directory: Path) -> list[int]:
    """Return the numbers of profiles that have traces, however long ago they were asked for."""
    names: list[str] = []
    with suppress(OSError):
        names = [each.name for each in (directory / FOLDER).iterdir()]
    return [int(name) for name in names if name.isdecimal()]


def find_wrong(num_steps: int, ranks: Sequence[int], world_size: int) -> str:
    """Return what is wrong with a request, whatever the run is at; empty if nothing is. Pure."""
    if not 1 <= num_steps <= MAX_STEPS:
        return f"steps: got {num_steps}, expected 1 to {MAX_STEPS}; choose fewer"
    if not 1 <= len(ranks) <= MAX_RANKS or len(set(ranks)) < len(ranks):
        return f"ranks: got {len(ranks)} of them, expected 1 to {MAX_RANKS}, each once; choose some"
    absent = [rank for rank in ranks if world_size and not 0 <= rank < world_size]
    if absent:
        return f"ranks: got {absent[0]}, expected 0 to {world_size - 1}: ranks that there are now"
    return ""


def plan_first_step(last_step: int, step_times_s: Sequence[float]) -> int:
    """Return the step from which on ranks record that are asked now.

    It is far enough ahead for all of them to hear of it before the step in which they warm up, so
    that they record the same steps. Pure.

    Args:
        last_step: the newest that is known to be committed.
        step_times_s: how long steps take, any order.
    """
    usual_s = median(step_times_s) if step_times_s else _NOTICE_S
    ahead = ceil(_NOTICE_S / usual_s) if usual_s > 0 else 0
    return last_step + _STEPS_AHEAD + ahead
