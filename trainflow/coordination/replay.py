"""Do steps of a recorded run again on this machine, each rank in a process of its own.

Where from, and whether what comes of it can be compared, is looked at before anything starts. The
run's folder of checkpoints is only read; its record is left alone.

Process: driver.  Threads: one a rank, which waits for the rank's process.  Blocks: until all have
answered, or the time is over.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.torch_process import Leash, Surroundings, run_with_torch
from trainflow.config.comparing import incomparable_settings
from trainflow.config.fingerprint import changed_settings
from trainflow.config.job import AS_KEPT, JobConfig
from trainflow.coordination.bisection import History
from trainflow.coordination.job_record import JobRecord, read_job_record
from trainflow.coordination.past_run import PastRun, list_records, read_past_run
from trainflow.epochs import StoredState
from trainflow.errors import CommunicationError, ConfigError, JobNotFoundError, TrainingError

Json = Any

_MODULE = "trainflow.computation.replay"
_OTHERS_END_WITHIN_S = 10.0
_SHOWN = 60


@dataclass(frozen=True)
class ReplayPlan:
    """What is to be done again.

    Attributes:
        run: whose steps.
        base: the checkpoint to begin from; None: the job's beginning.
        steps: in order, all of one world. The record may lack some: nobody lived to report them.
        world_size: how many ranks they had.
    """

    run: PastRun
    base: StoredState | None
    steps: tuple[int, ...]
    world_size: int

    @property
    def position(self) -> int | None:
        """Where in the data it begins; None: where the checkpoint does."""
        return None if self.base is None else self.run.rewinds.find_position(self.base.step)

    @property
    def recorded(self) -> History:
        """What the run's record has of these steps."""
        wanted = set(self.steps)
        return History(
            {step: digest for step, digest in self.run.digests.items() if step in wanted},
            {},
            {step: each for step, each in self.run.tensors.items() if step in wanted},
        )


@dataclass(frozen=True)
class Replayed:
    """What came of it.

    Attributes:
        history: what was digested.
        losses: by step.
    """

    history: History
    losses: dict[int, float]


class _Beginning(NamedTuple):
    """After which step a replay begins, and whether that was asked for."""

    step: int
    is_chosen: bool

    def __str__(self) -> str:
        return f"{self.step}" if self.is_chosen else f"none, and so the newest, {self.step},"


def find_run_of(job: JobConfig, step: int) -> PastRun:
    """Return the newest recorded run of a job that has a digest of a step.

    Raises:
        JobNotFoundError: none is recorded here, or none has it.
        ConfigError: those that are had other settings.
    """
    config = job.model_dump(mode="json")
    named = [
        (folder, record)
        for folder in list_records()
        if (record := read_job_record(folder)) is not None and record.config.get("name") == job.name
    ]
    if not named:
        raise JobNotFoundError(
            f"run: got the job {job.name}, of which no run is recorded on this machine, expected "
            "one; name the folder with its record"
        )
    changes = [incomparable_settings(record.config, config) for _, record in named]
    alike = [folder for (folder, _), changed in zip(named, changes, strict=True) if not changed]
    if not alike:
        raise ConfigError(
            f"run: got a job whose newest run, {named[0][0].name}, had other settings "
            f"({describe_changes(changes[0])}), expected the same; change them back, or name the "
            "run instead of the job"
        )
    for folder in alike:
        run = read_past_run(folder)
        if step in run.digests:
            return run
    raise JobNotFoundError(
        f"--step: got {step}, of which no run of {job.name} with these settings has a digest "
        f"(the newest is {alike[0].name}), expected a step that one has"
    )


def describe_changes(changed: dict[str, tuple[Any, Any]]) -> str:
    """Return settings that differ, each with both values."""
    return "; ".join(
        f"{name}: {str(before)[:_SHOWN]!r} and {str(now)[:_SHOWN]!r}"
        for name, (before, now) in changed.items()
    )


def plan_replay(run: PastRun, step: int, begin: int | None = None) -> ReplayPlan:
    """Choose where to begin, and make sure that the record has what is to be compared.

    Args:
        run: whose step.
        step: the last one to be done again.
        begin: the step whose checkpoint to begin from, 0 for none; None: the newest before it.

    Raises:
        ConfigError: the record lacks a digest, the world changed meanwhile, or the checkpoint is of
            other settings.
        JobNotFoundError: there is no such checkpoint.
        CheckpointError: the store doesn't answer, or its manifest is damaged.
    """
    job = parse_settings(run.job)
    _require_digest(run, step)
    base = None if begin == 0 else _find_base(run, job, step, begin)
    beginning = _Beginning(0 if base is None else base.step, is_chosen=begin is not None)
    _require_beginning(run, beginning, step)
    _require_no_jump(run, beginning, step)
    steps = range(beginning.step + 1, step + 1)
    return ReplayPlan(run, base, tuple(steps), _require_one_world(run, steps, beginning))


def parse_settings(record: JobRecord) -> JobConfig:
    """Return the job of a recorded run.

    Raises:
        ConfigError: its settings are those of another release.
    """
    try:
        return JobConfig.model_validate_json(json.dumps(record.config), context=AS_KEPT)
    except ValidationError as error:
        raise ConfigError(
            f"run: got {record.job_id}, whose settings are no job of this release "
            f"({error.errors()[0]['msg']}), expected one of this release; use that one"
        ) from error


def _require_digest(run: PastRun, step: int) -> None:
    if step not in run.steps:
        raise ConfigError(
            f"--step: got {step}, which the record of {run.job.job_id} doesn't have, expected one "
            f"of {_span(run.steps)}; choose one, or the run that has done this step"
        )
    if run.steps[step].digest is None:
        raise ConfigError(
            f"--step: got {step}, of which the record of {run.job.job_id} has no digest, expected "
            "one; of sharded models training.deterministic makes it"
        )


def _require_beginning(run: PastRun, beginning: _Beginning, step: int) -> None:
    """Refuse to begin before the run did: what comes before its first step was another's."""
    if beginning.step + 1 < min(run.steps):
        raise ConfigError(
            f"--from: got {beginning} for step {step}, while {run.job.job_id} has done "
            f"{_span(run.steps)}, expected a checkpoint of step {min(run.steps) - 1} or later; "
            "change it, or name the run that has done the steps before"
        )


def _require_no_jump(run: PastRun, beginning: _Beginning, step: int) -> None:
    """Refuse steps within which the run has passed over samples: one begins at one place."""
    jump = run.rewinds.find_jump(beginning.step, step)
    if jump is not None:
        raise ConfigError(
            f"--from: got {beginning} for step {step}, while {run.job.job_id} went back to step "
            f"{jump} for its loss and passed over samples there, expected the checkpoint of that "
            f"step or of a later one; change it, or choose a step up to {jump}"
        )


def _span(steps: Iterable[int]) -> str:
    known = sorted(steps)
    return f"steps {known[0]} to {known[-1]}" if known else "none"


def _require_one_world(run: PastRun, steps: Sequence[int], beginning: _Beginning) -> int:
    """Return how many ranks the steps had; sums of another world have other bits."""
    worlds = {step: run.steps[step].world_size for step in steps if step in run.steps}
    (first, before), *_ = worlds.items()
    for step, world_size in worlds.items():
        if world_size != before:
            later = f", or --from one at step {step - 1} or after, if there is one"
            raise ConfigError(
                f"--step: got {steps[-1]}, for which step {first} had {before} ranks and step "
                f"{step} had {world_size}, expected one world from the checkpoint on; choose a "
                f"step before {step}{later if beginning.is_chosen else ''}"
            )
    return before


def _find_base(run: PastRun, job: JobConfig, step: int, begin: int | None) -> StoredState:
    resume = job.checkpoint.resume
    elsewhere = resume if isinstance(resume, str) and resume not in {"auto", "never"} else None
    stored = [
        StoredState(url, each)
        for url in (elsewhere, job.checkpoint.url)
        if url is not None
        for each in CheckpointStore(url).committed_steps()
    ]
    stored.sort(key=lambda each: each.step)  # of two of one step, the run's own folder comes last
    for each in reversed(stored):
        wanted = each.step < step if begin is None else each.step == begin < step
        if wanted and _is_before(run, job, each):
            return each
    before = "before it" if begin is None else f"of step {begin}, before it"
    hint = "; --from 0 begins at the beginning" if 1 in run.steps else ""
    raise JobNotFoundError(
        f"--step: got {step}, expected a checkpoint of the run {before}; "
        f"{_describe_stored(job.checkpoint.url, stored)}{hint}"
    )


def _describe_stored(url: str | None, stored: Sequence[StoredState]) -> str:
    """Say which checkpoints there are to begin from."""
    if stored:
        steps = ", ".join(str(each.step) for each in stored)
        return f"there are checkpoints of steps {steps} in {url or stored[0].url}"
    return "the run has kept none, as checkpoint.url was null" if url is None else f"{url} has none"


def _is_before(run: PastRun, job: JobConfig, stored: StoredState) -> bool:
    """Tell whether a checkpoint is of this run's history: its own, or what it has gone on from.

    Raises:
        ConfigError: it is, and was made with other settings.
    """
    manifest = CheckpointStore(stored.url).read_manifest(stored.step)
    if manifest.job_id != run.job.job_id and stored.step >= min(run.steps):
        return False
    changed = changed_settings(manifest.config, run.job.config)
    refused = {name: both for name, both in changed.items() if name not in job.checkpoint.accept}
    if refused:
        raise ConfigError(
            f"{stored}: got one of a run with other settings ({describe_changes(refused)}), "
            f"expected those of {run.job.job_id}; choose another with --from"
        )
    return True


def run_replay(plan: ReplayPlan, *, timeout_s: float, import_paths: Sequence[str]) -> Replayed:
    """Do the steps again, and return what they are digested to.

    Args:
        plan: which steps, from where.
        timeout_s: how long it may take before it is killed.
        import_paths: where the job's modules are.

    Raises:
        TrainFlowError: a rank could not do them; of several such errors the one that came first.
        CheckpointError: the checkpoint is damaged, or it took too long.
    """
    with tempfile.TemporaryDirectory(prefix="trainflow-") as scratch:
        requests = [
            {
                "config": plan.run.job.config,
                "job_id": plan.run.job.job_id,
                "rank": rank,
                "world_size": plan.world_size,
                "meeting_place": str(Path(scratch, "meeting-place")),
                "base": None if plan.base is None else asdict(plan.base),
                "position": plan.position,
                "last_step": plan.steps[-1],
            }
            for rank in range(plan.world_size)
        ]
        answer = _ask_ranks(requests, timeout_s, import_paths)
    digests = {step: digest for step, digest, _ in answer["steps"] if digest is not None}
    if plan.steps[-1] not in digests:
        raise TrainingError(
            f"replay: got no digest of step {plan.steps[-1]}, expected one as the run had; use the "
            "release that the run was made with"
        )
    losses = {step: loss for step, _, loss in answer["steps"]}
    return Replayed(History(digests, {}, dict(answer["tensors"])), losses)


def _ask_ranks(requests: Sequence[Json], timeout_s: float, import_paths: Sequence[str]) -> Json:
    """Return what rank 0 answers, once all have; when one fails, the others are ended."""
    leashes, surroundings = [Leash() for _ in requests], Surroundings(import_paths)

    def ask(request: Json, leash: Leash) -> Json:
        return run_with_torch(
            _MODULE, request, surroundings=surroundings, timeout_s=timeout_s, leash=leash
        )

    with ThreadPoolExecutor(len(requests), thread_name_prefix="replay") as pool:
        try:
            asked = [pool.submit(ask, *each) for each in zip(requests, leashes, strict=True)]
            done, running = wait(asked, return_when=FIRST_EXCEPTION)
            if running:  # they hear that a rank is gone, and have perhaps more to say of it
                done = wait(asked, _OTHERS_END_WITHIN_S).done
            _raise_first_cause(done)
        finally:
            for leash in leashes:
                leash.pull()
        return asked[0].result()


def _raise_first_cause(done: set["Future[Json]"]) -> None:
    """Raise a rank's own error rather than that another rank was gone."""
    errors = [error for each in done if (error := each.exception()) is not None]
    errors.sort(key=lambda error: isinstance(error, CommunicationError))
    if errors:
        raise errors[0]
