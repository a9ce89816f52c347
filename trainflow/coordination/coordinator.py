"""The coordinator actor: one run, from its first worker to its result.

It hears of what happens (workers ready, gone, done; groups failed; steps committed), asks the pure
functions of `membership`, `recovery_plan` and `hang_detection` what follows, and carries it out. It
holds nothing that can't be found again: a coordinator that was killed comes back as a new
incarnation, finds its workers by name, asks them where they stand, and training goes on meanwhile.

Process: coordinator, a detached actor near the head.  Thread: one event loop; no call blocks it.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from trainflow.checkpointing.sharing import ShareReport
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.campaign_marks import join_campaign
from trainflow.computation.reports import (
    AllStop,
    CheckpointUnusable,
    RanksDiffer,
    SnapshotLeftOut,
    StepReport,
)
from trainflow.config.job import JobConfig
from trainflow.coordination import adoption
from trainflow.coordination.background import Background
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.closing import close_run
from trainflow.coordination.consistency_watch import ConsistencyWatch
from trainflow.coordination.departure import Departure
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.endings import describe_failure, tell_ending
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.intake import Intake
from trainflow.coordination.keeper import Heartbeat, HeartbeatReply
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.late_answers import LateAnswers
from trainflow.coordination.launch import launch_workers
from trainflow.coordination.launchers import Launchers
from trainflow.coordination.losses import Losses
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.messages import (
    Crashed,
    Finished,
    GroupFailed,
    Ready,
    ShareFailed,
    UploadAnswer,
    WorkerDescription,
    WorkerMessage,
)
from trainflow.coordination.node_changes import NodeChanges
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.profiles import Profiles
from trainflow.coordination.raised import Raised
from trainflow.coordination.rewinding import Rewinding
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED, SUCCESS, Ending, RunState
from trainflow.coordination.silent_nodes import SilentNodes
from trainflow.coordination.stall_watch import StallWatch
from trainflow.coordination.status import build_status, list_news, list_workers
from trainflow.coordination.status_file import StatusFile
from trainflow.coordination.step_detectors import StepDetectors
from trainflow.coordination.stop_order import StopOrder
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.coordination.worker_watch import WorkerWatch
from trainflow.epochs import Version

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_ACKNOWLEDGE_S = 0.2
Paths = tuple[str, ...]


class Coordinator:
    """Runs one job."""

    def __init__(
        self, job_id: str, job_json: str, import_paths: Paths, directory: str, attempt: int = 1
    ):
        self._job_id, clock = job_id, SYSTEM_CLOCK
        job = self._job = JobConfig.model_validate_json(job_json)
        record = self._record = RunRecord(Path(directory), clock)
        record.begin_attempt(attempt)
        record.keep_job(job_id, job, import_paths)
        nodes = self._nodes = NodeWatch(job_id, job, clock, directory, import_paths)
        background = self._background = Background(self._fail)
        guard = DetectorGuard(record, background, clock)
        self._monitor = RunMonitor(job_id, job, record, clock)
        self._checkpoints = CheckpointControl(job_id, job, record, clock, self._monitor)
        memory = MemoryTier(job, nodes, record, clock)
        self._kept = KeptState(self._checkpoints, memory, record, background, self, guard)
        self._kept.begin_drills(job, import_paths)
        self._intake = Intake(self._take, record, nodes, background, self)
        watch = WorkerWatch(
            record,
            on_gone=lambda worker_id, cause: self.lose([worker_id], cause),
            take=self._intake.take,
            on_error=self._fail,
            is_quiet=lambda node_id: node_id in nodes.quiet_nodes(),
        )
        pool = self._pool = WorkerPool(job_id, job, import_paths, watch, Launchers(job, nodes))
        control = self._control = EpochControl(job, pool, record, self._kept, clock, superior=self)
        hangs = HangWatch(job, pool, nodes, record)
        evidence = HangEvidence(nodes, record, job.entrypoint)
        stalls = StallWatch(hangs, memory, control, evidence, guard, clock)
        self._response = HangResponse(hangs, evidence, control, guard, self, stalls)
        self._consistency = ConsistencyWatch(pool, control, record, self, guard)
        self._detectors = StepDetectors(job, pool, control, nodes, record, guard)
        self._profiles = Profiles(job, pool, control, record)
        self._changes = NodeChanges(job, pool, control, nodes, record, guard)
        self._rewinding = Rewinding(job, record, control, self._checkpoints)
        self._staffing = self._changes.staffing
        self._losses = Losses(pool, record, control, self._staffing, background, self)
        stopped = record, pool, control, self._kept, self._response, self._losses, background
        self._stop_order = StopOrder(*stopped, superior=self)
        self._raised = Raised(pool, record, control, self)
        self._late = LateAnswers(pool, record, background, self._intake.take, self)
        self._silent = SilentNodes(pool, nodes, record, self._checkpoints, self, guard)
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._state: RunState | None = None
        self._status_file = StatusFile(self._record.directory, self._look, SYSTEM_CLOCK)
        self._departure = Departure(record, self._status_file, clock)
        join_campaign(job_id, "coordinator")
        for lasting in (self._nodes.keep_awake(), self._live(), self._status_file.keep()):
            self._background.start(lasting)

    # Calls from workers and Keepers

    async def report(self, worker_id: str, messages: list[WorkerMessage]) -> None:
        """Take a worker's messages; a repeated one, or one after the end, changes nothing."""
        if self._ending.done():
            return
        for message in messages:
            self._intake.take(worker_id, message)

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """Take a Keeper's heartbeat; one that was restarted must be told of its peers again."""
        self._nodes.hear(beat.node_id, beat.progress, knows_peers=beat.knows_peers)
        self._silent.hear(beat)
        self._changes.hear(beat)
        self._monitor.hear(beat)
        self._response.look()
        self._control.troubles.on_progress(beat.progress)
        if self._control.is_open:  # before that it isn't known who there is
            incarnation = self._control.incarnation
            self._staffing.end_strangers(beat.node_id, beat.progress, incarnation)
        self._checkpoints.hear(beat.node_id, beat.ready)
        recoverable = self._kept.memory.hear(beat)
        return HeartbeatReply(
            self._control.incarnation,
            self._response.told_after_s,
            recoverable,
            self._record.last_epoch,
            is_counted=self._nodes.counts(beat.node_id),
        )

    async def ask_upload(self, node_id: str, version: Version, share_index: int) -> UploadAnswer:
        """Say whether a Keeper is to upload a share of a version now."""
        return self._checkpoints.ask(node_id, version, self._control.incarnation, share_index)

    async def take_share(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Take what a Keeper says of its share; see `CheckpointControl.on_share`."""
        return await self._checkpoints.take(report, permit, len(self._control.members))

    async def look_after_share(self, version: Version, permit: str) -> bool | None:
        """Say what became of a version whose share was reported; see `CheckpointControl.look`."""
        return self._checkpoints.look(version, permit)

    # Calls from drivers and people

    async def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
        """Return where the run stands, with the events and steps after those; see `list_news`."""
        return self._describe() | list_news(self._record, since_event, since_step)

    def _describe(self) -> dict[str, Any]:
        status = build_status(
            self._job_id, self._job, self._control, self._record, self._checkpoints
        )
        at_work = RunState.STOPPING if self._stop_order.is_given else self._control.state
        status["state"] = str(self._state or at_work)
        status |= self._detectors.describe() | self._monitor.describe()
        status["ending"] = None if self._state is None else self._ending.result().describe()
        return status

    def _look(self) -> dict[str, Any]:
        """Return what is published: the status, and the workers."""
        workers = list_workers(self._pool, self._control.members, self._nodes)
        return {"status": self._describe(), "workers": workers}

    async def workers(self) -> list[dict[str, Any]]:
        """Return every worker: rank, node, pid, state, step, seconds since its last progress."""
        return list_workers(self._pool, self._control.members, self._nodes)

    async def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    async def profile(self, num_steps: int, ranks: list[int]) -> dict[str, Any]:
        """Have ranks record steps; see `Profiles.begin`."""
        return await self._profiles.begin(num_steps, ranks)

    async def stop(self) -> int:
        """End the run at the next step boundary; a repeat changes nothing. Returns the attempt."""
        if not self._ending.done():
            self._stop_order.give()
        return self._record.attempt

    async def is_ending(self) -> bool:
        """Whether it is settled how the run ends; its status tells once all is closed."""
        return self._ending.done()

    async def retire(self, *, at_once: bool = False) -> None:
        """The result has been read: the coordinator may go, if `at_once`, on a full disk too."""
        self._departure.permit(at_once=at_once)

    # The run's life

    async def _live(self) -> None:
        """From the first call to the last; whatever goes wrong, the run has an ending to tell."""
        try:
            await self._run_and_close()
        except Exception:
            logger.exception("the coordinator failed")
            self._fail(traceback.format_exc())
            await self._monitor.close(self._ending.result().state)
        self._state = self._ending.result().state
        self._monitor.tell_over(self._state)
        await self._departure.wait()
        await asyncio.sleep(_ACKNOWLEDGE_S)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _run_and_close(self) -> None:
        ending = self._record.read_ending()
        if ending is None:
            ending = await self._run()
            self._monitor.end(ending.state)
            # Before anything is cleaned up: one that comes back meanwhile must not begin anew.
            self._record.write_ending(self._job_id, ending)
        else:
            self.end(ending)
        if not self._control.is_open:  # it may not know yet what there is
            await adoption.find_remains(self._job_id, self._pool, self._nodes)
        await close_run(ending, self._control, self._pool, self._nodes, self._kept)
        await self._monitor.close(ending.state)
        tell_ending(ending, self._record)

    def _fail(self, trace: str) -> None:
        self.end(Ending(RunState.FAILED, f"the coordinator failed:\n{trace}", 1))

    async def _run(self) -> Ending:
        """Open the run and wait for its end, which may come first."""
        opening = asyncio.get_running_loop().create_task(self._open())
        await asyncio.wait({opening, self._ending}, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        try:
            await opening
        except asyncio.CancelledError:
            logger.info("the run ended before it was open")
        except Exception as error:  # noqa: BLE001  not swallowed: the run ends with it
            self.end(describe_failure(error))
        self._background.start(self._tick())
        return await self._ending

    async def _open(self) -> None:
        await self._changes.begin()
        has_bundles = await self._pool.bundles.find()
        found = await adoption.find_workers(self._job_id) if has_bundles else {}
        where = self._job_id, self._staffing, self._nodes
        has_keepers = has_bundles and await adoption.find_nodes(*where)
        goes_on = self._record.losses.members and not self._stop_order.is_given
        if found or (has_keepers and goes_on):
            await self._adopt(found)
        elif self._stop_order.is_given:
            self.end(STOPPED)
        else:
            self._stop_order.permit()
            self._raised.begin({})
            self._staffing.tell_missing(())
            if self.spend(self._record.losses.last):
                return
            self._record.add_event("submitted", f"job {self._job_id}")
            await self._kept.find_first()
            self._control.candidacy.designated = await launch_workers(
                self._job, self._pool, self._nodes, self._record
            )
            await adoption.take_office(self._nodes, self._control, SYSTEM_CLOCK)
        self._stop_order.permit()
        if not self._ending.done():
            self._control.open()

    async def _adopt(self, found: dict[str, Any]) -> None:
        text = "a new coordinator looks for its workers"
        self._record.add_event("coordinator_restarted", text, workers=sorted(found))
        if not found:  # nobody would have to stop
            self._stop_order.permit()
        parts = self._pool, self._nodes, self._control, self._record, SYSTEM_CLOCK
        estate = await adoption.adopt(found, *parts)
        self._raised.begin(estate.raised)
        self._staffing.tell_missing(self._control.members)
        self.spend(self._record.losses.last)
        for worker_id, cause in estate.lost.items():
            self.lose([worker_id], cause)
        members_live = not self._pool.entries.keys().isdisjoint(self._control.members)
        if not members_live:  # a store that is silent may keep it waiting without end
            self._stop_order.permit()
        await self._kept.find_stored_again(members_live=members_live)
        self._late.wait_for(estate.unheard)
        for bundle in estate.vacant:
            self._losses.replace(bundle)
        if self._control.all_finished():
            self._background.start(self._finish())

    async def _tick(self) -> None:
        while not self._nodes.is_closing:
            await asyncio.sleep(_TICK_S)
            self._record.unwritten.flush()
            await self._kept.tick(self._nodes.node_ids)
            self._changes.tick(may_start=self._losses.replaces)
            self._rewinding.tick()
            newest = self._checkpoints.newest
            self._monitor.tick(len(self._control.members), self._control.num_spares, newest)
            self._silent.tick()

    async def _finish(self) -> None:
        """Every member has returned: what is left is to see the final state into storage."""
        await self._kept.wait_stored()
        self.end(SUCCESS)

    # As superior of the epochs' control

    def end(self, ending: Ending) -> None:
        """End the run; the first ending counts."""
        if not self._ending.done():
            self._ending.set_result(ending)
            self._losses.end()

    # What happens

    def _take(self, worker_id: str, message: WorkerMessage) -> None:
        match message:
            case Ready(description):
                self._on_ready(description)
            case StepReport():
                self._control.on_step(message)
                self._detectors.on_step(message)
                self._staffing.starts.on_step()
            case RanksDiffer():
                self._consistency.on_difference(message)
            case CheckpointUnusable() | SnapshotLeftOut():
                self._kept.take(message)
            case GroupFailed(epoch, reason):
                self._control.troubles.on_group_failed(worker_id, epoch, reason)
            case Finished() | AllStop():
                self._on_leaving(worker_id, message)
            case Crashed(traceback):
                self._raised.take(worker_id, traceback)
            case _:
                self._record.add_report(message)

    def _on_ready(self, description: WorkerDescription) -> None:
        entry = self._pool.entries.get(description.worker_id)
        if entry is not None:
            self._pool.describe(description)
            self._staffing.on_ready(entry, description.node_id)
            self._staffing.starts.on_ready(entry)
            self._record.contacts.note(description)
            self._control.advance()

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        """Get rid of workers that are gone or useless, and start others in their places."""
        if not self._ending.done():
            self._losses.lose(worker_ids, cause)

    def spend(self, text: str) -> bool:
        """Judge a failure that is recorded; ends the run, and returns True, if it was too many."""
        return self._losses.spend(text)

    def _on_leaving(self, worker_id: str, message: Finished | AllStop) -> None:
        if isinstance(message, AllStop):
            self._stop_order.on_all_stop(message)
            return
        self._control.on_finished(worker_id)
        if self._control.all_finished():
            self._background.start(self._finish())


CoordinatorActor = ray.remote(max_restarts=-1, num_cpus=0)(Coordinator)
