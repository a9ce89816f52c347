"""One campaign: a job's run undisturbed, and once more with the plan's faults falling on it.

Process: driver.  Thread: main.  Blocks: until both runs are over, or the time is.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.chaos_orders import Claim, give_order, read_claim
from trainflow.config.chaos_plan import FaultTarget
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.chaos.evidence import facts_of, gather
from trainflow.coordination.chaos.fallen import FallenFault, Outcome, SparesSeen, find_unfelt_fills
from trainflow.coordination.chaos.falling import Falling
from trainflow.coordination.chaos.faults import order_of
from trainflow.coordination.chaos.figures import Figures, measure
from trainflow.coordination.chaos.findings import Findings, RunEvidence
from trainflow.coordination.chaos.flips import DIFFERING
from trainflow.coordination.chaos.ground import Ground
from trainflow.coordination.chaos.invariants import Verdict, judge
from trainflow.coordination.chaos.run_view import RunView
from trainflow.coordination.chaos.scene import Scene
from trainflow.coordination.chaos.schedule import PlannedFault
from trainflow.coordination.driver import Run
from trainflow.epochs import Phase
from trainflow.errors import CoordinationError

_LOOK_EVERY_S = 0.02
_STOPS_WITHIN_S = 30.0
_CLEAN_WITHIN_S = 30.0
_AFTER_THE_COMMIT = {Phase.OPTIMIZER, Phase.SNAPSHOT, Phase.USER}
_STEPS_UNDER_WAY = 3  # may still be committed while a fault falls

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """What a campaign came to.

    Attributes:
        folder: where all of it is written.
        faults: every planned one.
        verdicts: one for each invariant.
        figures: what the faults cost; None where clocks were wrong by which that is measured.
        runs: ids of its runs, the disturbed one last.
    """

    folder: Path
    faults: tuple[FallenFault, ...]
    verdicts: tuple[Verdict, ...]
    figures: Figures | None
    runs: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether no invariant was broken."""
        return all(each.holds is not False for each in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "holds": self.holds,
            "invariants": [asdict(each) for each in self.verdicts],
            "figures": None if self.figures is None else asdict(self.figures),
            "faults": [_fault_as_json(each) for each in self.faults],
            "runs": list(self.runs),
            "folder": str(self.folder),
        }


@dataclass
class Campaign:
    """What its runs share.

    Attributes:
        ground: the cluster.
        job: what is run.
        faults: all that are to fall.
        clock: tells when.
        timeout_s: longest that one run may take.
        tell: takes a line for a person.
        disturbed: the run with faults, once that has begun.
    """

    ground: Ground
    job: JobConfig
    faults: Sequence[PlannedFault]
    clock: Clock
    timeout_s: float
    tell: Tell = field(default=lambda _: None)
    disturbed: "_OneRun | None" = field(default=None, init=False)

    def carry_out(self, *, compares: bool) -> Report:
        """Run the job, undisturbed first if ``compares``, and judge what it came to."""
        undisturbed = None
        if compares:
            self.tell("first run: undisturbed")
            undisturbed = self.run_undisturbed()
        self.tell(f"{'second run' if compares else 'run'}: {len(self.faults)} faults")
        self.disturbed = _OneRun(self, "disturbed", self.faults)
        evidence = self.disturbed.see_through()
        return self._report(undisturbed, evidence, self.disturbed)

    def report_so_far(self, reason: str) -> dict[str, Any]:
        """Return, as `Report.to_json`, what fell until it ended early; it claims no verdict.

        Args:
            reason: why it ended.
        """
        fallen = [] if self.disturbed is None else self.disturbed.find_fallen()
        return {
            "ended_early": reason,
            "holds": None,
            "invariants": [],
            "figures": None,
            "faults": [_fault_as_json(each) for each in _sorted(fallen)],
            "runs": [each.job_id for each in self.ground.runs],
            "folder": str(self.ground.folder),
        }

    def run_undisturbed(self) -> RunEvidence:
        """Run the job with no fault falling."""
        return _OneRun(self, "undisturbed", ()).see_through()

    def _report(
        self, undisturbed: RunEvidence | None, evidence: RunEvidence, run: "_OneRun"
    ) -> Report:
        fallen = [each.at_s for each in run.fallen if each.at_s is not None and each.victim]
        skewed = _find_skewed(self.faults)
        facts = facts_of(self.job)
        findings = Findings(facts, evidence, undisturbed, run.fallen, run.spares, skewed)
        steps = None if undisturbed is None else undisturbed.steps
        figures = measure(evidence.steps, evidence.events, fallen, steps)
        figures = replace(figures, starting_cpu_s=run.starting_cpu_s)
        if not evidence.is_done:  # that it stood still after its last step is in no figure
            figures = replace(figures, goodput_ratio=None)
        return Report(
            folder=self.ground.folder,
            faults=_sorted(run.fallen),
            verdicts=judge(findings),
            figures=None if _skews_figures(self.faults) else figures,
            runs=tuple(each.job_id for each in self.ground.runs),
        )


class _OneRun:
    """One run from its start until nothing of it is left.

    Attributes:
        fallen: what became of each of its faults, once it is over.
        spares: what was seen of them, once it is over.
        starting_cpu_s: CPU time of workers that started while it trained.
    """

    def __init__(self, campaign: Campaign, name: str, faults: Sequence[PlannedFault]):
        self.fallen: list[FallenFault] = []
        self.spares: SparesSeen | None = None
        self.starting_cpu_s = 0.0
        self._campaign = campaign
        self._clock = campaign.clock
        self._job = _with_own_store(campaign.job, campaign.ground.folder.name, name)
        self._faults = faults
        self._falling = Falling(faults, self._job.workers.spares, self._clock, self._note)
        self._was_stopped = False
        self._run: Run | None = None
        self._undone: dict[int | None, str] = {}

    def see_through(self) -> RunEvidence:
        """Run the job to its end, with its faults; return all that it has left."""
        ground = self._campaign.ground
        run = self._run = ground.start(self._job)
        folder = ground.folder / run.job_id
        for planned in self._faults:
            if planned.is_ordered:
                give_order(folder, order_of(planned))
        view = RunView(run, self._clock, sum(each.silences_s for each in self._faults))
        scene = Scene(run.job_id, view, folder, self._clock, ground.own, undone=self._undone)
        view.start()
        with ExitStack() as at_last:
            at_last.callback(scene.release_stopped)
            try:
                self._disturb(run, scene)
            finally:
                scene.release_all()
                view.close()
            run.retire()
            left = self._await_nothing(run, view)
        self.starting_cpu_s = view.starting_cpu_s
        num_spares = self._job.workers.spares
        self.spares = SparesSeen(num_spares, view.most_spares, self._falling.is_warm)
        if None in scene.undone:
            left.append(f"what faults did {scene.undone[None]}, as it was to be ended")
        flips = [each.number for each in self._faults if each.fault.kind == "flip"]
        evidence = gather(self._status_at_end(run, view), folder, flips, left)
        evidence = replace(evidence, strays=view.traces.find_new_shared())
        self._conclude(folder, evidence, scene.unfelt)
        return evidence

    def find_fallen(self) -> list[FallenFault]:
        """Return what has fallen so far, or could not be done, also what ranks did themselves."""
        if self._run is None:
            return []
        self._look_for_claims(self._campaign.ground.folder / self._run.job_id, 0)
        found = [replace(each, undone=self._undone.get(each.number)) for each in self.fallen]
        return [each for each in found if each.outcome in {Outcome.FELL, Outcome.FAILED}]

    def _disturb(self, run: Run, scene: Scene) -> None:
        """Have faults fall until the run is over; one that takes too long is stopped."""
        ends_at_s = self._clock.monotonic_s() + self._campaign.timeout_s
        while not scene.view.is_over:
            scene.act()
            now_s = self._clock.monotonic_s()
            if not self._was_stopped and now_s > ends_at_s:
                self._campaign.tell(f"not over after {self._campaign.timeout_s:g} s: stopping it")
                with suppress(CoordinationError):  # it may be beyond hearing
                    run.stop()
                self._was_stopped, ends_at_s = True, now_s + _STOPS_WITHIN_S
            elif self._was_stopped and now_s > ends_at_s:
                scene.view.gone = f"it did not stop within {_STOPS_WITHIN_S:.0f} s"
            elif not self._was_stopped:
                self._falling.look(scene)
            self._clock.sleep(_LOOK_EVERY_S)
        self._falling.close()

    def _note(self, planned: PlannedFault, fallen: FallenFault) -> None:
        self.fallen.append(fallen)
        self._campaign.tell(f"after step {fallen.after_step}: {planned.what}: {fallen.told}")

    def _status_at_end(self, run: Run, view: RunView) -> dict[str, Any]:
        """Return how the run ended; where that took too long, this is the reason."""
        status = _last_status(run, view)
        if not self._was_stopped or status["state"] == "succeeded":
            return status
        limit_s, reason = self._campaign.timeout_s, status["ending"]["reason"]
        told = f"it was not over after timeout_s = {limit_s:g}: raise that, or have fewer steps"
        return status | {"ending": {**status["ending"], "reason": f"{told} ({reason})"}}

    def _await_nothing(self, run: Run, view: RunView) -> list[str]:
        """Wait until nothing of the run is left; returns what still is, if it takes too long."""
        deadline_s = self._clock.monotonic_s() + _CLEAN_WITHIN_S
        while left := view.traces.find_left(run.job_id):
            if self._clock.monotonic_s() > deadline_s:
                return left
            self._clock.sleep(_LOOK_EVERY_S * 10)
        return []

    def _conclude(self, folder: Path, evidence: RunEvidence, unfelt: Collection[int]) -> None:
        """Say what became of each fault, also of those that ranks did themselves."""
        self._look_for_claims(folder, max((line["step"] for line in evidence.steps), default=0))
        recovered = [each["data"] for each in evidence.events if each["kind"] == "recovered"]
        self.fallen = [replace(each, undone=self._undone.get(each.number)) for each in self.fallen]
        skewed = _find_skewed(self._faults)
        unfelt = {*unfelt, *find_unfelt_fills(self.fallen, evidence.events, skewed)}
        self.fallen = [
            replace(each, victim=None, is_missed=True) if each.number in unfelt else each
            for each in self.fallen
        ]
        if not _skews_figures(self._faults):
            committed_s = [each["committed_at_s"] for each in evidence.steps]
            self.fallen = [_with_recovery(each, recovered, committed_s) for each in self.fallen]

    def _look_for_claims(self, folder: Path, last_step: int) -> None:
        """Add what became of faults that ranks did themselves, or were to do."""
        fallen = {each.number: each for each in self.fallen}
        for planned in self._faults:
            by_rank = planned.is_ordered or planned.fault.kind == "flip"
            made = read_claim(folder, planned.number) if by_rank else None
            if planned.number not in fallen:
                fallen[planned.number] = _done_by_itself(planned, made, last_step)
            elif by_rank and fallen[planned.number].victim is not None:
                # A flip at a time: it was ordered then, and fell in the next step.
                before = fallen[planned.number]
                fallen[planned.number] = replace(
                    before,
                    victim=None if made is None else before.victim,
                    worker_id=None if made is None else made.worker_id,
                    at_s=before.at_s if made is None else made.at_s,
                    is_missed=made is None,
                )
        self.fallen = list(fallen.values())


def _sorted(faults: Sequence[FallenFault]) -> tuple[FallenFault, ...]:
    return tuple(sorted(faults, key=lambda each: each.at_s or float("inf")))


def _fault_as_json(fault: FallenFault) -> dict[str, Any]:
    return asdict(fault) | {"outcome": str(fault.outcome)}


def _find_skewed(faults: Sequence[PlannedFault]) -> frozenset[FaultTarget]:
    """Return whose clocks may be wrong for a while."""
    return frozenset(each.fault.target for each in faults if each.fault.kind == "skew_clock")


def _skews_figures(faults: Sequence[PlannedFault]) -> bool:
    """Whether clocks may be wrong by which figures are measured.

    Those are the coordinator's and the ranks'. A Keeper's is none, unless one tells when it died.
    """
    targets = _find_skewed(faults)
    is_told = any(each.is_ordered and each.fault.target == "keeper" for each in faults)
    return bool(targets) if is_told else bool(targets - {"keeper"})


def _done_by_itself(planned: PlannedFault, made: Claim | None, last_step: int) -> FallenFault:
    """Return what became of a fault that fell, or was to fall, by itself, or was never due."""
    told = FallenFault.of(planned)
    if made is None:
        at_step = planned.at_step
        is_missed = planned.is_ordered and at_step is not None and at_step <= last_step
        return replace(told, is_missed=is_missed)
    is_committed = planned.phase in _AFTER_THE_COMMIT
    told = replace(told, at_s=made.at_s, after_step=made.step - (not is_committed))
    if made.rank is None:
        victim = f"the Keeper of {made.worker_id}, pid {made.pid}"
        return replace(told, victim=victim, host=made.worker_id)
    who = f"rank {made.rank} ({made.worker_id}), pid {made.pid}"
    return replace(told, victim=who, worker_id=made.worker_id)


def _with_own_store(job: JobConfig, campaign: str, name: str) -> JobConfig:
    """Give a run a folder of its own for checkpoints, beside the job's, if it makes any.

    Beside a whole bucket there is nothing of ours: then it is in it.
    """
    if job.checkpoint.url is None:
        return job
    of_job = job.checkpoint.url.rstrip("/")
    is_bucket = "/" not in of_job.partition("://")[2] and "://" in of_job
    url = f"{of_job}{'/' if is_bucket else '-'}{campaign}/{name}"
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"url": url})})


def _last_status(run: Run, view: RunView) -> dict[str, Any]:
    """Return how a run ended, also if nobody lived to tell."""
    if view.status.get("ending"):
        return view.status
    lost = {"state": "was lost", "ending": {"reason": view.gone or "its status was never heard"}}
    record = names.home() / "runs" / run.job_id
    return {"job_id": run.job_id, "directory": str(record), **view.status, **lost}


def _with_recovery(
    fallen: FallenFault, recovered: Sequence[dict[str, Any]], committed_s: Sequence[float]
) -> FallenFault:
    """Add when all ranks had committed a step after it, if a recovery names it as a cause.

    Training stands still from a loss on: who was named after more steps had something else.
    """
    if fallen.at_s is None or fallen.victim is None:
        return fallen
    by_worker = () if fallen.worker_id is None else (f"{fallen.worker_id} ",)
    said = DIFFERING if fallen.what.startswith("flip") else by_worker
    for each in recovered:
        is_named = any(text in cause for cause in each["causes"] for text in said)
        num_since = sum(fallen.at_s < at_s <= each["noticed_at_s"] for at_s in committed_s)
        if is_named and each["committed_at_s"] > fallen.at_s and num_since <= _STEPS_UNDER_WAY:
            return replace(fallen, recovered_s=each["committed_at_s"] - fallen.at_s)
    return fallen
