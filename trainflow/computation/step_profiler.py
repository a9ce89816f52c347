"""Record whole steps of this rank with torch.profiler, when it is asked to.

A step is recorded from where it begins to read its data to where the next one does, with a range
for the step and one for each phase of it, since waiting for other ranks is no operation of torch's.
The step before the first one warms the profiler up. A profile ends with its epoch: what there is by
then is written.

While the profiler starts, and while it makes a trace of what it has recorded, the whole process
stands still, for a second or two in 400,000 operations: that is a phase of its own, which detectors
of hangs give time. The trace is packed into the run's folder by a thread that nobody waits for.

Process: every worker.  Thread: training; control calls `ask`; one that writes.
Blocks: training, while a trace is made; on the run's folder for a while at the run's end only.
Fails: never in training; whoever asked is told why there is no trace.
"""

import gzip
import importlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from trainflow.checkpointing.whole_files import PART_PREFIX
from trainflow.computation.profile_order import ProfileFailed, ProfileOrder, ProfileTrace
from trainflow.computation.stamps import StampWriter
from trainflow.epochs import EpochId, Phase

logger = logging.getLogger(__name__)

_WRITTEN_WITHIN_S = 60.0
_LEVEL = 6  # of gzip; at 9 it takes twice as long for a hundredth less
_RECORD = "events.jsonl"  # only the coordinator makes it: who sees it sees the run's folder

Report = Callable[[ProfileTrace | ProfileFailed], None]


class Recorder(Protocol):
    """Records one profile. All of it is called by one thread."""

    def begin(self) -> None:
        """Warm up, in the step that begins."""
        ...

    def next_step(self, number: int) -> bool:
        """Another step begins, which is recorded; False if there are as many as there are to be."""
        ...

    def mark(self, phase: Phase) -> None:
        """The step goes on with another phase."""
        ...

    def end(self) -> bool:
        """Record no more; returns whether anything was."""
        ...

    def save(self, path: Path) -> None:
        """Write the trace, uncompressed."""
        ...


class TorchRecorder:
    """Records with torch.profiler: operations of this process, and of its device."""

    def __init__(self, device: torch.device, num_steps: int):
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._is_complete = False
        self._ranges: list[AbstractContextManager[Any]] = []  # the step, and its phase
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=num_steps, repeat=1),
            on_trace_ready=self._complete,
        )

    def begin(self) -> None:
        """Warm up, in the step that begins."""
        self._profile.start()

    def next_step(self, number: int) -> bool:
        """Another step begins, which is recorded; False if there are as many as there are to be."""
        self._leave(0)
        self._profile.step()
        if not self._is_complete:
            self._enter(f"step {number}")
        return not self._is_complete

    def mark(self, phase: Phase) -> None:
        """The step goes on with another phase."""
        if self._ranges:
            self._leave(1)
            self._enter(str(phase))

    def end(self) -> bool:
        """Record no more; returns whether anything was."""
        self._leave(0)
        self._profile.stop()
        return self._is_complete

    def save(self, path: Path) -> None:
        """Write the trace, uncompressed."""
        self._profile.export_chrome_trace(str(path))

    def _complete(self, _profile: object) -> None:
        self._is_complete = True

    def _enter(self, name: str) -> None:
        entered = record_function(name)
        entered.__enter__()
        self._ranges.append(entered)

    def _leave(self, depth: int) -> None:
        """Leave ranges, the inner ones first, until so many are left."""
        while len(self._ranges) > depth:
            self._ranges.pop().__exit__(None, None, None)


class StepProfiler:
    """One worker's. It follows the training thread's stamps."""

    def __init__(
        self, stamps: StampWriter, report: Report, make_recorder: Callable[[int], Recorder]
    ):
        """Begin with nothing to record.

        Args:
            stamps: shows that the thread stands still for good reason.
            report: takes what came of an order; must not block.
            make_recorder: of so many steps.
        """
        self._stamps = stamps
        self._report = report
        self._make_recorder = make_recorder
        self._lock = threading.Lock()
        self._is_busy = False
        self._order: ProfileOrder | None = None
        self._writing: threading.Thread | None = None
        # The training thread's own.
        self._is_within = False
        self._step = 0
        self._is_applied = False
        self._recorder: Recorder | None = None
        self._first_step: int | None = None

    def ask(self, order: ProfileOrder) -> str:
        """Have steps recorded; returns why not, empty if they will be. Called by control."""
        if not (Path(order.run_folder) / _RECORD).is_file():
            return (
                f"its node does not see {order.run_folder}, where the trace would go: "
                "TRAINFLOW_HOME has to be on a disk that all nodes share"
            )
        with suppress(ImportError):  # else the training thread would, for a second or two
            importlib.import_module("torch._inductor.config")
        with self._lock:
            if self._is_busy:
                return "it still records, or writes, another profile"
            self._is_busy, self._order = True, order
        return ""

    def on_stamp(self, phase: Phase, step: int, _epoch: EpochId) -> None:
        """The training thread goes on to a phase of a step."""
        if self._is_within:
            return
        begins = phase is Phase.DATA and step != self._step
        if begins:
            self._step, self._is_applied = step, False
        elif phase is Phase.OPTIMIZER:
            self._is_applied = True
        order = self._order
        if order is not None:
            self._try(order, lambda: self._follow(order, phase, begins=begins))

    def finish(self) -> None:
        """Training is over: write what there is, and wait until it is written, within a bound."""
        order = self._order
        if order is not None:
            self._try(order, lambda: self._cut(order, "the run has come to its end"))
        writing = self._writing
        if writing is not None:
            writing.join(_WRITTEN_WITHIN_S)

    def _try(self, order: ProfileOrder, act: Callable[[], None]) -> None:
        """Act for an order; what goes wrong ends it, and nothing else."""
        self._is_within = True
        try:
            act()
        except Exception as error:
            logger.exception("profile %d can't be recorded", order.number)
            recorder = self._recorder
            if recorder is not None:
                with suppress(Exception):
                    recorder.end()
            self._fail(order, f"{type(error).__name__}: {error}")
        finally:
            self._is_within = False

    def _follow(self, order: ProfileOrder, phase: Phase, *, begins: bool) -> None:
        if phase is Phase.PARKED:
            self._cut(order, "the epoch ended")
            return
        if self._recorder is None:
            if begins and self._step >= order.first_step - 1:
                self._recorder = self._make_recorder(order.num_steps)
                with self._standing_still():
                    self._recorder.begin()
            return
        if begins:
            with self._standing_still():
                goes_on = self._recorder.next_step(self._step)
            if not goes_on:
                self._save(order, self._recorder, self._step - 1)
                return
            self._first_step = self._first_step or self._step
        self._recorder.mark(phase)

    def _standing_still(self) -> AbstractContextManager[None]:
        return self._stamps.during(Phase.PROFILE)

    def _cut(self, order: ProfileOrder, reason: str) -> None:
        """End an order before the step begins that would end it."""
        recorder = self._recorder
        if recorder is None:
            self._fail(order, f"{reason} before step {order.first_step}")
            return
        with self._standing_still():
            has_any = recorder.end()
        if not has_any:
            self._fail(order, f"{reason} before a step was recorded")
            return
        first_step = self._first_step or self._step
        is_whole = self._is_applied and self._step - first_step + 1 == order.num_steps
        self._save(order, recorder, self._step, "" if is_whole else reason)

    def _save(
        self, order: ProfileOrder, recorder: Recorder, last_step: int, cut_short: str = ""
    ) -> None:
        """Write the trace to this machine's own disk, and have it packed from there."""
        first_step = self._first_step or last_step
        trace = ProfileTrace(
            order.number, order.rank, order.file, 0, first_step, last_step, cut_short
        )
        path = Path(tempfile.mkdtemp(prefix="trainflow-profile-")) / "trace.json"
        try:
            with self._standing_still():
                recorder.save(path)
        except BaseException:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        self._forget()
        self._writing = threading.Thread(
            target=self._keep, args=(order, path, trace), name="profile", daemon=True
        )
        self._writing.start()

    def _fail(self, order: ProfileOrder, reason: str) -> None:
        self._forget()
        self._is_busy = False
        self._report(ProfileFailed(order.number, order.rank, reason))

    def _forget(self) -> None:
        self._order = None
        self._recorder = None
        self._first_step = None

    # The thread that writes

    def _keep(self, order: ProfileOrder, path: Path, trace: ProfileTrace) -> None:
        try:
            num_bytes = pack(path, order.path)
        except OSError as error:
            reason = f"{order.path} could not be written ({error})"
            outcome: ProfileTrace | ProfileFailed = ProfileFailed(order.number, order.rank, reason)
        else:
            outcome = replace(trace, num_bytes=num_bytes)
        shutil.rmtree(path.parent, ignore_errors=True)
        self._is_busy = False
        self._report(outcome)


def pack(source: Path, target: Path) -> int:
    """Write a file compressed; it is there whole or not at all. Returns its size in bytes.

    Raises:
        OSError: it can't be read, or the place doesn't take it.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target.with_name(f"{PART_PREFIX}{target.name}")
    try:
        with source.open("rb") as plain, gzip.open(part, "wb", compresslevel=_LEVEL) as packed:
            shutil.copyfileobj(plain, packed)
        return part.replace(target).stat().st_size
    finally:
        part.unlink(missing_ok=True)
