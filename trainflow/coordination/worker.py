"""The worker actor: one process that trains, and a few calls by which it is steered.

Process: worker, in a bundle of the job's placement group.
Threads: ``run`` is training; ``control`` calls run beside it and never wait for a step.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
from ray.util import get_node_ip_address

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import find_folder
from trainflow.computation.profile_order import ProfileOrder
from trainflow.computation.reports import StepReport
from trainflow.computation.skewed_clock import follow_skew
from trainflow.config.importing import uncollected
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.messages import Crashed, Ready, WorkerDescription, WorkerSpec
from trainflow.coordination.presence import PresenceSocket
from trainflow.coordination.reporter import Reporter
from trainflow.coordination.stack_dumps import locate_stacks
from trainflow.coordination.start_times import StartTimes, read_process_age_s
from trainflow.coordination.startup import StartPhase
from trainflow.epochs import EpochSpec, Flag, MemberReport, RecoveryPlan, Version

if TYPE_CHECKING:
    from trainflow.computation.epoch_gate import EpochGate
    from trainflow.computation.step_profiler import StepProfiler
    from trainflow.coordination.topology import Labels

# Calls of `form` may each wait for a peer that is gone until a newer one supersedes them. Those of
# `wait_exit` wait behind the first for ever: each coordinator calls it, again where it was cut off.
CONCURRENCY_GROUPS = {"control": 8, "form": 16, "watch": 4, "exit": 1}

_Method = TypeVar("_Method", bound=Callable[..., object])

_HEARD_WITHIN_S = 10.0


def _in_group(name: str) -> Callable[[_Method], _Method]:
    """Run a method in a thread of this concurrency group, beside ``run``.

    It is `ray.method`, whose annotations know neither keyword-only parameters nor a call from
    within the actor.
    """
    return cast("Any", ray.method(concurrency_group=name))


class Worker:
    """One slot of the world, member or spare."""

    def __init__(self, spec: WorkerSpec):
        self._start = StartTimes(spec.asked_at_s, read_process_age_s(), SYSTEM_CLOCK)
        sys.path[:0] = [path for path in spec.import_paths if path not in sys.path]
        with uncollected():
            from torch.distributed import TCPStore  # noqa: PLC0415  the paths above come first

            from trainflow.computation.stack_file import StackFile  # noqa: PLC0415
            from trainflow.computation.stamps import StampWriter  # noqa: PLC0415
            from trainflow.coordination.worker_runtime import (  # noqa: PLC0415
                find_disturbance,
                make_gate,
                make_profiler,
            )

        self._start.end(StartPhase.IMPORTS)
        self._spec = spec
        self._host = get_node_ip_address()
        self._node_id = ray.get_runtime_context().get_node_id()
        # Ray says that a label has a list of values; it has one.
        self._node_labels = cast("Labels", ray.get_runtime_context().get_node_labels())
        self._presence = PresenceSocket(self._host)
        with socket.create_server((self._host, 0)) as listener:  # by itself it listens everywhere
            port = listener.getsockname()[1]
            self._store = TCPStore(
                self._host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=30),
                master_listen_fd=listener.detach(),
            )
        self._reporter = Reporter(spec.job_id, spec.worker_id)
        folder = names.stamp_directory(spec.job_id, self._node_id)
        self._stacks = StackFile(locate_stacks(folder, spec.worker_id))
        self._stamps = StampWriter(folder / f"{spec.worker_id}.stamp")
        job = JobConfig.model_validate_json(spec.job_json)
        self._profiler: StepProfiler = make_profiler(job, self._stamps, self._reporter)
        self._disturbance = find_disturbance(spec)
        follow_skew(find_folder(spec.job_id), os.getpid())
        self._gate: EpochGate = make_gate(spec, job, self._host, self._reporter, self._disturbance)
        self._raised: str | None = None
        self._is_begun = False
        self._trained = threading.Event()
        self._exit = threading.Event()

    def run(self) -> None:
        """Train until the run is over; called again, do nothing.

        A call that waits for the worker to start is lost with the coordinator that made it; the
        next coordinator makes it again. Calls come one after another.
        """
        if self._is_begun:
            return
        self._is_begun = True
        from trainflow.coordination.worker_runtime import (  # noqa: PLC0415
            Surroundings,
            run_training,
        )

        threading.Thread(target=self._announce, name="announce", daemon=True).start()
        around = Surroundings(
            gate=self._gate,
            host=self._host,
            stamps=self._stamps,
            reporter=self._reporter,
            stacks=self._stacks,
            start=self._start,
            profiler=self._profiler,
            disturbance=self._disturbance,
        )
        self._raised = run_training(self._spec, around)
        if self._raised is not None:
            # A coordinator that comes just then may not know what to do with it, but asks.
            self._reporter.send(Crashed(self._raised))
        self._trained.set()

    @_in_group("control")
    def describe(self) -> WorkerDescription:
        """Tell all about this worker."""
        standing = self._gate.standing
        return WorkerDescription(
            worker_id=self._spec.worker_id,
            node_id=self._node_id,
            node_labels=self._node_labels,
            pid=os.getpid(),
            host=self._host,
            store_port=self._store.port,
            presence_port=self._presence.port,
            ready=self._gate.has_parked,
            returned=self._trained.is_set(),
            spec=self._gate.spec,
            has_begun=self._gate.has_begun,
            standing=None if standing is None else standing.report(self._spec.worker_id),
            failure=self._gate.failure,
            start=self._start.tell(),
            raised=self._raised,
            plan=self._gate.plan,
        )

    @_in_group("form")
    def form(self, spec: EpochSpec, *, at_boundary: bool) -> MemberReport:
        """Connect for an epoch and stand still; see `EpochGate.form`."""
        return self._gate.form(spec, at_boundary=at_boundary)

    @_in_group("form")
    def stand(self) -> None:
        """Return once training stands still; see `EpochGate.wait_standing`."""
        self._gate.wait_standing()

    @_in_group("control")
    def steps_up_to(self, base: Version, after: int) -> tuple[StepReport, ...]:
        """Tell of steps that this worker has committed, while it is parked; see `Standing`."""
        standing = self._gate.standing
        return () if standing is None else standing.steps_up_to(base, after)

    @_in_group("control")
    def begin(self, plan: RecoveryPlan) -> None:
        """Go; see `EpochGate.begin`."""
        self._gate.begin(plan)

    @_in_group("control")
    def request(self, flag: Flag) -> None:
        """Tell all ranks ``flag`` with the next commit."""
        self._gate.request(flag)

    @_in_group("control")
    def profile(self, order: ProfileOrder) -> str:
        """Have steps recorded; returns why not, empty if they will be. See `StepProfiler.ask`."""
        return self._profiler.ask(order)

    @_in_group("control")
    def close(self) -> None:
        """End training here: the training function is unwound and ``run`` returns."""
        self._gate.close()
        self._stacks.close()
        self._stamps.close()

    @_in_group("watch")
    def wait_trained(self) -> None:
        """Return once ``run`` is over, and the coordinator has heard of its last step."""
        self._trained.wait()
        self._reporter.flush(_HEARD_WITHIN_S)

    @_in_group("exit")
    def wait_exit(self) -> None:
        """Never return: the call fails when the process dies."""
        self._exit.wait()

    def _announce(self) -> None:
        from trainflow.communication.compression.load_times import (  # noqa: PLC0415
            seconds_loading,
        )

        self._gate.wait_parked()
        last = StartPhase.REHEARSAL if self._spec.rehearse else StartPhase.MODEL
        self._start.finish(last, kernels_s=seconds_loading())
        self._reporter.send(Ready(self.describe()))


# Ray's annotation of `remote` leaves concurrency_groups out.
WorkerActor = cast("Any", ray.remote)(max_restarts=0, concurrency_groups=CONCURRENCY_GROUPS)(Worker)
