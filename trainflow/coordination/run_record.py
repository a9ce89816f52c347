"""What happened in a run, kept in files that outlive its actors.

``events.jsonl``, ``metrics.jsonl`` and, if digests of tensors are asked for, ``digests.jsonl`` are
append-only, one JSON object a line. ``job.json`` is written once, at the beginning (`job_record`),
``result.json`` at the end; ``status.json`` is replaced all the time (`status_file`). A full disk
stops nothing: what can't be written waits in memory (`unwritten`), and an event says so.
``workers.jsonl`` is for the next coordinator alone (`worker_contacts`).

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
"""

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import EvaluationReport, StepReport, TensorDigests
from trainflow.config.job import JobConfig
from trainflow.coordination import ending_file
from trainflow.coordination.anomaly_history import AnomalyHistory
from trainflow.coordination.attempt_ends import Past, conclude_attempt
from trainflow.coordination.early_steps import EarlySteps
from trainflow.coordination.followers import Follower, Followers
from trainflow.coordination.hang_history import HangHistory
from trainflow.coordination.job_record import JobRecord, write_job_record
from trainflow.coordination.line_file import LineFile
from trainflow.coordination.loss_history import LossHistory
from trainflow.coordination.messages import Event
from trainflow.coordination.relief_history import ReliefHistory
from trainflow.coordination.report_events import EVALUATED, WORK, Told, describe_report
from trainflow.coordination.rewind_history import DONE as REWOUND
from trainflow.coordination.rewind_history import RewindHistory
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.unwritten import INCOMPLETE, Unwritten
from trainflow.coordination.worker_contacts import WorkerContacts
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0
_EVENTS_IN_MEMORY = 1000
_STEPS_IN_MEMORY = 2000
_SLOW, _CHECKPOINT = "compression_slow", "checkpoint"
_LASTING = frozenset(
    {"isolate", "readmit", "drain", "drained", "drain_late", "drain_over", "nowhere_to_go"}
    | {"straggler", "straggler_over", "slow_network", "slow_network_over", "ranks_differ"}
    | {"detector_off", "detector_on", "link_cut", "link_cut_over", "lease_ended", WORK}
)
"""Kinds of events that a coordinator goes by however long ago they were."""
_EVENTS = "events.jsonl"
_ENDS = tuple(str(state) for state in RunState if state.is_terminal)


def has_record(directory: Path) -> bool:
    """Whether anything was written of a run in its folder."""
    return (directory / _EVENTS).exists()


class RunRecord:
    """Events and committed steps of one run.

    Attributes:
        last_step: the newest step known to be committed.
        last_epoch: that committed it; None if no step was since this coordinator began.
        losses: workers and epochs lost so far, in this attempt.
        rewinds: how it has gone back for its loss, in all attempts.
        anomalies: those that are told of, in all attempts.
        hangs: what was judged to hang so far, in this attempt.
        reliefs: who has given its rank to a spare, in this attempt.
        beginnings: of each epoch its id, and the step that it began after.
        told_at_s: when the newest event of a kind and a step was, by CLOCK_REALTIME.
        attempt: counts how often the job was begun: 1, and one more each time it is resumed.
        contacts: how workers are reached.
        unwritten: what there is no room for yet.
    """

    def __init__(self, directory: Path, clock: Clock):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.contacts = WorkerContacts(directory / "workers.jsonl")
        self._clock = clock
        self._events_file = LineFile(directory / _EVENTS)
        self._steps_file = LineFile(directory / "metrics.jsonl")
        self._digests_file = LineFile(directory / "digests.jsonl")
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_IN_MEMORY)
        self._lasting: list[dict[str, Any]] = []
        self._began_at_s: float | None = None
        self._steps = deque(self._steps_file.read_last(_STEPS_IN_MEMORY), maxlen=_STEPS_IN_MEMORY)
        self._world_sizes = {line["world_size"] for line in self._steps}
        files = self._events_file, self._steps_file, self._digests_file
        self.unwritten = Unwritten(directory, files, self.add_event)
        self.attempt = 1
        self._followers = Followers()
        # What has to be known of events that are long past, too.
        self.rewinds = RewindHistory()
        self.anomalies = AnomalyHistory()
        self.losses = LossHistory()
        self.hangs = HangHistory()
        self.reliefs = ReliefHistory()
        self.beginnings: list[tuple[EpochId, int]] = []
        self._begun_from_stored: dict[int, EpochId] = {}  # by the checkpoint's step, the last time
        self.told_at_s: dict[tuple[str, int], float] = {}
        self._kinds: set[str] = set()
        self._steps_by_kind: dict[str, list[int]] = defaultdict(list)
        self._evaluations: dict[str, dict[int, float]] = defaultdict(dict)
        resumed: dict[str, Any] | None = None
        for event in self._events_file.read():
            self._keep(event)
            resumed = event["data"] if event["kind"] == "resumed" else resumed
        for line in self._steps:
            self.hangs.take_step(line["step"], line.get("after_event", 0))
        self.last_step = self._find_last_step(resumed)
        self._early = EarlySteps(self.beginnings[-1][0] if self.beginnings else None)
        self.last_epoch: EpochId | None = None

    def begin_attempt(self, attempt: int) -> None:
        """Begin a job anew that has ended, or whose coordinator is gone for good.

        What the attempt before it came to is told, and kept as ``result-a1.json``. Again after a
        crash, or by a coordinator that comes back, this changes nothing.
        """
        if attempt <= self.attempt:
            return
        past = Past(self.attempt, any(map(self.has, _ENDS)), self._events, self.newest_step)
        before = conclude_attempt(self.directory, past)
        told: dict[str, Any] = {} if before is None else {"before": before}
        text = f"attempt {attempt} of the job begins"
        self.add_event("attempt", text, attempt=attempt, **told)

    @property
    def newest_incarnation(self) -> int:
        """The newest that has formed an epoch; 0 before the first."""
        return max((epoch.incarnation for epoch, _ in self.beginnings), default=0)

    @property
    def _newest_event(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._events[-1]["number"] if self._events else 0

    def add_event(self, kind: str, text: str, **data: Any) -> None:  # noqa: ANN401  JSON
        """Append an event."""
        event = asdict(Event(self._newest_event + 1, self._clock.unix_s(), kind, text, data))
        self._keep(event)
        if kind == "submitted":
            self.contacts.begin()
        self.unwritten.note(self._events_file.append(event))
        self._note_unfollowed(self._followers.on_event(event))

    def follow(self, follower: Follower) -> None:
        """Tell a follower of each event and step that is recorded from now on."""
        self._followers.add(follower)

    def add_step(self, report: StepReport, count_spares: Callable[[], int] | None = None) -> None:
        """Append a committed step; one that is known is dropped, and one of a void history.

        One that comes before its epoch waits for `add_early_steps`.

        Beside what the rank tells, its line has ``heard_at_s``, by this machine's CLOCK_REALTIME,
        and ``after_event``, the number of the newest event then: ranks' clocks may be wrong.

        Args:
            report: what was told of it.
            count_spares: tells how many workers stand by now; None: it is long past.
        """
        if self._early.keep(report, self.last_step):
            return
        if report.step <= self.last_step or self.is_void(report.version):
            return
        self.last_step, self.last_epoch = report.step, report.epoch
        line = asdict(report)
        del line["joined"], line["pausing"], line["compute_by_rank"]
        line["epoch"] = str(report.epoch)
        if report.odd_norm is None:
            del line["odd_norm"]
        if count_spares is not None:
            line["num_spares"] = count_spares()
        if report.sums is not None and report.sums.slow_kernels and not self.has(_SLOW):
            text = "some rank compresses in plain torch, several times slower: its log says why"
            self.add_event(_SLOW, text, since_step=report.step)
        line |= {"heard_at_s": self._clock.unix_s(), "after_event": self._newest_event}
        self._steps.append(line)
        self._world_sizes.add(report.world_size)
        self.hangs.take_step(report.step, self._newest_event)
        self.unwritten.note(self._steps_file.append(line))
        self._note_unfollowed(self._followers.on_step(report))

    def is_void(self, version: Version) -> bool:
        """Whether a later epoch has begun from an earlier state, and does that step again.

        What was read from a checkpoint is of the epoch that began from it, the last time that one
        did.
        """
        epoch = version.epoch
        if epoch == INITIAL_EPOCH:
            epoch = self._begun_from_stored.get(version.step, epoch)
        later = takewhile(lambda each: each[0] > epoch, reversed(self.beginnings))
        return any(base_step < version.step for _, base_step in later)

    def begin_after(self, step: int, source: str, epoch: EpochId, **told: int) -> None:
        """Training begins after ``step``, from what was kept; steps beyond it are done again."""
        self.last_step = step
        text = f"training begins after step {step}, from {source}"
        began_in = [epoch.incarnation, epoch.counter]
        self.add_event("resumed", text, step=step, source=source, epoch=began_in, **told)

    def add_early_steps(self, epoch: EpochId) -> None:
        """Append what was heard of an epoch before it was known to have begun, as it is now."""
        for report in self._early.begin(epoch):
            self.add_step(report)

    def add_report(self, report: Told | TensorDigests) -> None:
        """Append what a rank tells, as an event but for digests; repeats of it are dropped."""
        if isinstance(report, TensorDigests):
            line = asdict(report) | {"epoch": str(report.epoch)}
            self.unwritten.note(self._digests_file.append(line))
            return
        (kind, text), data = describe_report(report), asdict(report)
        if isinstance(report, EvaluationReport):
            is_known = self._evaluations[report.name].get(report.step) == report.value
        else:  # all workers tell how much the model computes
            is_known = kind == WORK and any(
                each["kind"] == WORK and each["data"] == data for each in self._lasting
            )
        if not is_known:
            self.add_event(kind, text, **data)

    def _keep(self, event: dict[str, Any]) -> None:
        kind, data = event["kind"], event["data"]
        self._events.append(event)
        if self._began_at_s is None:
            self._began_at_s = event["at_s"]
        if kind in _LASTING:
            self._lasting.append(event)
        self._kinds.add(kind)
        self.rewinds.take(event)
        self.losses.take(event)
        self.hangs.take(event)
        self.reliefs.take(event)
        self.anomalies.take(event)
        if kind == "attempt":
            self._forget_attempt(event)
        elif kind == EVALUATED:
            self._evaluations[data["name"]][data["step"]] = data["value"]
        elif kind == "epoch" and "base" in data:
            self._note_beginning(data["epoch"], data["base"])
        elif kind == REWOUND:  # checkpoints of what is void now are gone
            self._steps_by_kind[_CHECKPOINT] = [
                step for step in self._steps_by_kind[_CHECKPOINT] if step <= data["to_step"]
            ]
        elif "step" in data:
            self._steps_by_kind[kind].append(data["step"])
            self.told_at_s[kind, data["step"]] = event["at_s"]

    def _note_beginning(self, name: str, base: str) -> None:
        incarnation, counter = map(int, name.split("."))
        epoch, base_step = EpochId(incarnation, counter), int(base.partition("@")[0])
        self.beginnings.append((epoch, base_step))
        if base == str(Version(base_step, INITIAL_EPOCH)):
            self._begun_from_stored[base_step] = epoch

    def _forget_attempt(self, event: dict[str, Any]) -> None:
        """Begin anew with what goes by what has happened: the attempt before is over."""
        self.attempt = event["data"]["attempt"]
        self.losses, self.hangs, self.reliefs = LossHistory(), HangHistory(), ReliefHistory()
        self._kinds = set()
        self._lasting, self._began_at_s = [], event["at_s"]

    def _find_last_step(self, resumed: dict[str, Any] | None) -> int:
        """Return the newest step that counts: not one of a history that the run went back from."""
        newest = self._steps[-1] if self._steps else None
        if newest is None:
            return 0 if resumed is None else resumed["step"]
        its_epoch = [int(number) for number in newest["epoch"].split(".")]
        if resumed is not None and its_epoch < resumed["epoch"]:
            return resumed["step"]
        return newest["step"]

    @property
    def num_failures(self) -> int:
        """Workers and epochs lost so far."""
        return len(self.losses.failed_at_s)

    def events_since(self, number: int) -> list[dict[str, Any]]:
        """Return the events after ``number``, the oldest of very many left out."""
        return [event for event in self._events if event["number"] > number]

    def read_events_since(self, number: int) -> list[dict[str, Any]]:
        """Return all events after ``number``, from the file if some are not in memory."""
        is_whole = not self._events or self._events[0]["number"] <= number + 1
        events = self._events if is_whole else self._events_file.read()
        return [event for event in events if event["number"] > number]

    @property
    def lasting_events(self) -> list[dict[str, Any]]:
        """All events, the oldest too, by which it is known what still holds."""
        return list(self._lasting)

    @property
    def newest_step(self) -> dict[str, Any] | None:
        """The step that was recorded last, also of a history that is void by now."""
        return self._steps[-1] if self._steps else None

    @property
    def moved_on_at_s(self) -> float:
        """When the newest step was heard of, by CLOCK_REALTIME; -inf before the first."""
        newest = self.newest_step  # an earlier release's doesn't say
        return -math.inf if newest is None else newest.get("heard_at_s", math.inf)

    def steps_since(self, step: int) -> list[dict[str, Any]]:
        """Return the committed steps after ``step``, the oldest of very many left out."""
        return [line for line in self._steps if line["step"] > step]

    def seconds_between_failures(self) -> float:
        """Return the mean over the run so far, as if it had come after a day with one failure."""
        now_s = self._clock.unix_s()
        age_s = now_s - (now_s if self._began_at_s is None else self._began_at_s)
        return (_DAY_S + max(0.0, age_s)) / (1 + self.num_failures)

    def has(self, kind: str) -> bool:
        """Whether there was an event of this kind, in this coordinator's life or before."""
        return kind in self._kinds

    def steps_of(self, kind: str) -> list[int]:
        """Return the ``step`` of every event of a kind, oldest first."""
        return list(self._steps_by_kind[kind])

    def evaluations_of(self, name: str) -> dict[int, float]:
        """Return the values of an evaluation by step."""
        return dict(self._evaluations[name])

    def step_times_s(self, count: int) -> list[float]:
        """Return the durations of the newest steps of this record, as rank 0 measured them."""
        return [_duration_s(line) for line in list(self._steps)[-count:]]

    def first_step_times_s(self, count: int) -> list[float]:
        """Return the same of those of them alone that came first in their epoch."""
        newest = list(self._steps)[-count - 1 :]
        if len(newest) <= count:
            newest = [{"epoch": None}, *newest]
        return [
            _duration_s(line) for last, line in pairwise(newest) if last["epoch"] != line["epoch"]
        ]

    def warm_step_times_s(self, count: int) -> list[float]:
        """Return the same without the first step of each epoch, which may load and compile."""
        newest = list(self._steps)[-count - 1 :]
        return [
            _duration_s(line) for last, line in pairwise(newest) if last["epoch"] == line["epoch"]
        ]

    @property
    def fresh_epoch(self) -> EpochId | None:
        """The newest epoch that has begun, if no step of it is known to be committed."""
        newest = self.beginnings[-1][0] if self.beginnings else None
        is_fresh = not self._steps or self._steps[-1]["epoch"] != str(newest)
        return newest if is_fresh else None

    def knows_world(self, size: int) -> bool:
        """Whether any step that is known of was committed by so many ranks."""
        return size in self._world_sizes

    def keep_job(self, job_id: str, job: JobConfig, import_paths: Sequence[str]) -> None:
        """Write what is run. A full disk is told by an event."""
        try:
            write_job_record(self.directory, JobRecord.of(job_id, job, import_paths))
        except OSError as error:
            logger.exception("job.json could not be written")
            text = f"{self.directory} did not take job.json ({error}): the run can't be replayed"
            self.add_event(INCOMPLETE, text)

    def write_ending(self, job_id: str, ending: Ending) -> None:
        """Write how the run ended, as soon as there is room; whole or not at all."""
        self.unwritten.write_ending(job_id, ending, self._clock.unix_s())

    def read_ending(self) -> Ending | None:
        """Return how the run ended, if it has."""
        return ending_file.read_ending(self.directory)

    def _note_unfollowed(self, names: list[str]) -> None:
        """Say who follows the run no more."""
        for name in names:
            text = f"{name} failed and is told no more: the coordinator's log says why"
            self.add_event("monitoring_failed", text, follower=name)


def _duration_s(line: Mapping[str, Any]) -> float:
    return line["compute_s"] + line["wait_s"]
