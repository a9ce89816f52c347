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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.reports import EvaluationReport, StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination import adoption
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.failure_budget import FailureBudget
from trainflow.coordination.hang_detection import Progress, derive_hang_timeout_s, judge_progress
from trainflow.coordination.keeper import HeartbeatReply
from trainflow.coordination.launch import launch_workers
from trainflow.coordination.messages import (
    Crashed,
    Finished,
    GroupFailed,
    Ready,
    WorkerDescription,
    WorkerMessage,
)
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED, SUCCESS, Ending, RunState
from trainflow.coordination.status import build_status, list_workers
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool, ask_description
from trainflow.errors import TrainFlowError

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_LINGER_S = 60.0
_ACKNOWLEDGE_S = 0.2
_CLOSE_WITHIN_S = 3.0
_RESPAWN_AFTER_S = 1.5
_RESPAWN_AT_MOST_AFTER_S = 300.0
_STEP_TIMES_KEPT = 50


class Coordinator:
    """Runs one job."""

    def __init__(self, job_id: str, job_json: str, import_paths: tuple[str, ...], directory: str):
        self._job_id = job_id
        self._job = JobConfig.model_validate_json(job_json)
        self._record = RunRecord(Path(directory), SYSTEM_CLOCK)
        self._nodes = NodeWatch(job_id, self._job.failures.lease_s, SYSTEM_CLOCK)
        self._pool = WorkerPool(
            job_id,
            self._job,
            import_paths,
            on_gone=self._on_gone,
            on_stillborn=self._on_raised,
        )
        self._control = EpochControl(self._job, self._pool, self._record, SYSTEM_CLOCK, self)
        failures = self._job.failures
        self._budget = FailureBudget(failures.max_failures, failures.window_s)
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = loop.create_future()
        self._state: RunState | None = None
        self._retired = asyncio.Event()
        self._num_spawned = 0
        self._num_never_ready = Counter[int]()  # by bundle, since one was ready there
        self._tasks = {loop.create_task(self._live())}

    # Calls from workers and Keepers

    async def report(self, worker_id: str, messages: list[WorkerMessage]) -> None:
        """Take a worker's messages; a repeated one, or one after the end, changes nothing."""
        if self._ending.done():
            return
        for message in messages:
            self._take(worker_id, message)

    async def heartbeat(
        self, node_id: str, progress: dict[str, Progress], *, knows_peers: bool
    ) -> HeartbeatReply:
        """Take a Keeper's heartbeat; one that was restarted must be told of its peers again."""
        self._nodes.hear(node_id, progress, knows_peers=knows_peers)
        self._judge_hangs()
        self._control.on_progress(progress)
        return HeartbeatReply(self._control.incarnation, self._hang_timeout_s())

    # Calls from drivers and people

    async def status(self, since_event: int = 0, since_step: int = 0) -> dict[str, Any]:
        """Return where the run stands, with the events and steps after the given ones."""
        status = build_status(self._job_id, self._job, self._control, self._record)
        status["state"] = str(self._current_state())
        status["ending"] = None
        if self._state is not None and self._state.is_terminal:
            ending = self._ending.result()
            status["ending"] = {"reason": ending.reason, "exit_code": ending.exit_code}
        status["events"] = self._record.events_since(since_event)
        status["steps"] = self._record.steps_since(since_step)
        return status

    async def workers(self) -> list[dict[str, Any]]:
        """Return every worker: rank, node, pid, state, step, seconds since its last progress."""
        return list_workers(self._pool, self._control.members, self._nodes)

    async def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    async def stop(self) -> None:
        """End the run at the next step boundary. Acknowledged at once; a repeat changes nothing."""
        if self._state is RunState.STOPPING or self._ending.done():
            return
        self._state = RunState.STOPPING
        self._record.add_event("stopping", "asked to stop at the next step boundary")
        self._start(self._stop_workers())

    async def retire(self) -> None:
        """The result has been read: the coordinator may go."""
        self._retired.set()

    # The run's life

    async def _live(self) -> None:
        ending = self._record.read_ending()
        if ending is None:
            ending = await self._run()
            # Before anything is cleaned up: one that comes back meanwhile must not begin anew.
            self._record.write_ending(self._job_id, ending)
        else:
            self.end(ending)
            self._find_remains()
        await self._close(ending)
        self._state = ending.state
        await asyncio.wait({asyncio.ensure_future(self._retired.wait())}, timeout=_LINGER_S)
        await asyncio.sleep(_ACKNOWLEDGE_S)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _run(self) -> Ending:
        """Open the run and wait for its end, which may come first."""
        opening = asyncio.get_running_loop().create_task(self._open())
        await asyncio.wait({opening, self._ending}, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        try:
            await opening
        except asyncio.CancelledError:
            logger.info("the run ended before it was open")
        except TrainFlowError as error:
            self.end(Ending(RunState.FAILED, str(error), error.exit_code))
        except Exception as error:
            logger.exception("the run could not be opened")
            self.end(Ending(RunState.FAILED, f"{type(error).__name__}: {error}", 1))
        self._start(self._tick())
        return await self._ending

    async def _open(self) -> None:
        found = adoption.find_workers(self._job_id) if self._pool.find_group() else {}
        if found:
            await self._adopt(found)
        elif self._was_asked_to_stop():
            self.end(STOPPED)
        else:
            self._record.add_event("submitted", f"job {self._job_id}")
            self._control.designated = await launch_workers(
                self._job, self._pool, self._nodes, self._record
            )
            await adoption.take_office(self._nodes, self._control, SYSTEM_CLOCK)
        self._control.open()
        if self._was_asked_to_stop() and self._state is None:
            self._state = RunState.STOPPING
            self._start(self._stop_workers())

    async def _adopt(self, found: dict[str, Any]) -> None:
        self._record.add_event("coordinator_restarted", "a new coordinator looks for its workers")
        self._nodes.ensure(
            adoption.find_keeper_nodes(self._job_id) | {*self._pool.bundle_nodes().values()}
        )
        estate = await adoption.adopt(found, self._pool, self._nodes, self._control, SYSTEM_CLOCK)
        for worker_id, cause in estate.lost.items():
            self._on_gone(worker_id, cause)
        for worker_id in estate.unheard:
            self._start(self._describe_later(worker_id))
        for bundle in estate.vacant:
            self._start(self._respawn(bundle))
        if self._control.all_finished():
            self.end(SUCCESS)

    async def _describe_later(self, worker_id: str) -> None:
        """Wait for a worker that is starting; one that hangs is for the detectors."""
        description = await ask_description(self._pool.entries[worker_id].actor, None)
        if description is not None and description.ready:
            self._take(worker_id, Ready(description))

    def _was_asked_to_stop(self) -> bool:
        return any(event["kind"] == "stopping" for event in self._record.events_since(0))

    def _find_remains(self) -> None:
        """Find what a coordinator that died while it cleaned up has left."""
        self._pool.find_group()
        for worker_id, actor in adoption.find_workers(self._job_id).items():
            self._pool.adopt(worker_id, actor)
        self._nodes.ensure(adoption.find_keeper_nodes(self._job_id))

    async def _close(self, ending: Ending) -> None:
        self._control.close()
        await self._pool.close(_CLOSE_WITHIN_S)
        await self._nodes.close(_CLOSE_WITHIN_S)
        events = self._record.events_since(0)
        if not events or events[-1]["kind"] != str(ending.state):
            self._record.add_event(str(ending.state), ending.reason, exit_code=ending.exit_code)

    async def _tick(self) -> None:
        while not self._ending.done():
            await asyncio.sleep(_TICK_S)
            for node_id in self._nodes.silent_nodes():
                on_node = [e for e in self._pool.entries.values() if e.is_on(node_id)]
                for entry in on_node:
                    self._on_gone(entry.worker_id, "its node has not been heard within its lease")
                self._nodes.forget(node_id)

    async def _stop_workers(self) -> None:
        """Ask for a stop with the next commit, and wait for it as long as a few steps take."""
        if self._control.request_stop():
            steps_s = max(self._record.step_times_s(_STEP_TIMES_KEPT), default=1.0)
            await self._control.wait_stopped(2.0 + 3.0 * steps_s)
        self.end(STOPPED)

    # As superior of the epochs' control

    def end(self, ending: Ending) -> None:
        """End the run; the first ending counts."""
        if not self._ending.done():
            self._ending.set_result(ending)

    # What happens

    def _take(self, worker_id: str, message: WorkerMessage) -> None:
        match message:
            case Ready(description):
                self._on_ready(description)
            case StepReport():
                self._control.on_step(message)
            case EvaluationReport():
                self._record.add_evaluation(message)
            case GroupFailed(epoch, reason):
                self._control.on_group_failed(worker_id, epoch, reason)
            case Finished():
                self._on_finished(worker_id)
            case Crashed(traceback):
                self._on_raised(worker_id, traceback)

    def _on_ready(self, description: WorkerDescription) -> None:
        entry = self._pool.entries.get(description.worker_id)
        if entry is not None:
            self._num_never_ready.pop(entry.bundle, None)
            self._pool.describe(description)
            self._nodes.ensure({description.node_id})
            self._control.advance()

    def _on_gone(self, worker_id: str, cause: str) -> None:
        """A worker is gone; heard from Ray, its machine or a detector, whichever is first."""
        self.lose([worker_id], cause)

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        """Get rid of workers that are gone or useless, and start others in their places."""
        if self._ending.done():
            return
        known = [self._pool.entries[each] for each in worker_ids if each in self._pool.entries]
        texts = [self._drop(entry, cause) for entry in known]
        too_many = [self.spend(text) for text in texts]
        if any(too_many):
            return
        for entry, text in zip(known, texts, strict=True):
            self._num_never_ready[entry.bundle] += entry.description is None
            self._control.on_gone(entry, text)
            self._start(self._respawn(entry.bundle))

    def _drop(self, entry: WorkerEntry, cause: str) -> str:
        """Make sure that a worker is dead, and say so."""
        worker_id, description = entry.worker_id, entry.description
        rank = self._control.rank_of(worker_id)
        pid = None if description is None else description.pid
        text = f"lost {worker_id} ({'spare' if rank is None else f'rank {rank}'}): {cause}"
        self._record.add_event("failure", text, worker=worker_id, rank=rank, pid=pid, cause=cause)
        self._pool.drop(worker_id)
        if description is not None:
            self._nodes.fence(self._control.incarnation, description.node_id, worker_id)
        return text

    def spend(self, text: str) -> bool:
        """Count a failure; ends the run, and returns True, if that was one too many."""
        if not self._budget.spend(SYSTEM_CLOCK.monotonic_s()):
            return False
        limit = f"failures.max_failures = {self._budget.limit}"
        self.end(Ending(RunState.FAILED, f"more than {limit} failures; last: {text}", 1))
        return True

    def _on_raised(self, worker_id: str, trace: str) -> None:
        """The job's own code raised: a member's would again on any other worker.

        A spare's trouble may be its node's, and the members train: it is only tried again.
        """
        if worker_id not in self._pool.entries:
            return  # lost before; what it says is about a group that is past
        rank = self._control.rank_of(worker_id)
        if rank is None and self._control.epoch is not None:
            self.lose([worker_id], f"it raised:\n{trace}")
            return
        who = worker_id if rank is None else f"rank {rank} ({worker_id})"
        self.end(Ending(RunState.FAILED, f"{who} raised:\n{trace}", 1))

    def _on_finished(self, worker_id: str) -> None:
        self._control.on_finished(worker_id)
        if self._control.all_finished():
            self.end(SUCCESS)

    def _judge_hangs(self) -> None:
        progress = self._nodes.progress_of(set(self._pool.entries))
        verdict = judge_progress(progress, self._hang_timeout_s())
        for worker_id, evidence in verdict.hung.items():
            self._record.add_event("hang", f"{worker_id}: {evidence}", worker=worker_id)
            self._on_gone(worker_id, f"hung: {evidence}")
        members = self._nodes.progress_of(set(self._control.members))
        if judge_progress(members, self._hang_timeout_s()).deadlocked:
            self._control.break_epoch(self._control.epoch, "every member waits for another")

    def _hang_timeout_s(self) -> float:
        configured = self._job.failures.hang_timeout_s
        return derive_hang_timeout_s(
            self._record.step_times_s(_STEP_TIMES_KEPT),
            None if configured == "auto" else configured,
        )

    async def _respawn(self, bundle: int) -> None:
        """Start a replacement once training goes on, so as not to compete with its recovery.

        Where none has become ready, the next is tried later and later. While no step is committed
        any worker may begin the training: none is rehearsed, which would cost it its fresh state.
        """
        await self._control.wait_settled()
        delay_s = _RESPAWN_AFTER_S * 2 ** min(self._num_never_ready[bundle], 10)
        await asyncio.sleep(min(delay_s, _RESPAWN_AT_MOST_AFTER_S))
        if self._ending.done() or self._state is RunState.STOPPING:
            return
        self._num_spawned += 1
        serial = f"{self._control.incarnation}.r{self._num_spawned}"
        entry = self._pool.spawn(bundle, serial, rehearse=self._record.last_step > 0)
        self._record.add_event("respawned", f"started {entry.worker_id} as a spare")

    def _current_state(self) -> RunState:
        return self._state or self._control.state

    def _start(self, coroutine: Any) -> None:  # noqa: ANN401  a coroutine
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """Nobody awaits these tasks: one that fails must not leave a run without its care."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            trace = "".join(traceback.format_exception(error))
            logger.error("the coordinator failed:\n%s", trace)
            self.end(Ending(RunState.FAILED, f"the coordinator failed:\n{trace}", 1))


CoordinatorActor = ray.remote(max_restarts=-1, num_cpus=0)(Coordinator)
