"""What must hold of a run, whatever fell on it: verdicts on what its record and its ranks tell.

Each invariant is one function from the evidence to a verdict. A verdict that can't be given says
why, and counts for nothing. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.coordination.bisection import find_parting
from trainflow.coordination.chaos.fallen import count_outcomes, find_missing
from trainflow.coordination.chaos.findings import Findings, RunEvidence
from trainflow.coordination.chaos.flips import Naming, find_naming
from trainflow.coordination.chaos.missing_steps import find_missing_steps, tell_missing_steps
from trainflow.coordination.chaos.service_deaths import tell_unplanned_deaths
from trainflow.coordination.chaos.unplanned_losses import find_losses, tell_unplanned
from trainflow.coordination.chaos.used_samples import collect_samples
from trainflow.coordination.chaos.worker_lives import compare_ledger
from trainflow.data.order import SampleOrder

_SHOWN = 5
_LEDGER_WITHIN = 0.01


@dataclass(frozen=True)
class Verdict:
    """What became of one invariant.

    Attributes:
        invariant: what must hold.
        holds: None: it can't be told.
        evidence: what says so.
    """

    invariant: str
    holds: bool | None
    evidence: tuple[str, ...] = ()


def judge(found: Findings) -> tuple[Verdict, ...]:
    """Return a verdict on each invariant."""
    return tuple(invariant(found) for invariant in INVARIANTS)


def _judge(name: str, faults: Iterable[str], told: str) -> Verdict:
    """Hold what has no faults; of many faults the first are shown."""
    wrong = list(faults)
    return Verdict(name, not wrong, _cut(wrong) if wrong else (told,))


def _cut(wrong: Sequence[str]) -> tuple[str, ...]:
    more = (f"and {len(wrong) - _SHOWN} more",) if len(wrong) > _SHOWN else ()
    return (*wrong[:_SHOWN], *more)


def judge_end(found: Findings) -> Verdict:
    """The run did all of its steps."""
    run = found.disturbed
    wrong = [] if run.is_done else [f"it {run.state}: {run.reason.strip()[:500]}"]
    return _judge("it ends", wrong, f"it {run.state}")


def judge_faults(found: Findings) -> Verdict:
    """What the plan lists has fallen, and of what it draws something."""
    run = found.disturbed
    wrong = find_missing(found.faults, found.spares, run.events, is_done=run.is_done)
    return _judge("its faults fall", wrong, count_outcomes(found.faults))


def judge_losses(found: Findings) -> Verdict:
    """No process was lost but by what the plan holds, or what follows from it."""
    runs = [(found.disturbed, found.faults)]
    if found.undisturbed is not None:
        runs.append((found.undisturbed, ()))
    wrong = [
        f"{run.job_id}: {text}"
        for run, faults in runs
        for text in tell_unplanned(
            run.events,
            run.steps,
            faults,
            found.job.notice,
            skewed=found.skewed,
        )
    ]
    wrong += [
        f"{run.job_id}: {text}"
        for run, faults in runs
        for text in tell_unplanned_deaths(run.deaths, faults, found.job.notice, found.skewed)
    ]
    num_lost = sum(len(find_losses(run.events)) for run, _ in runs)
    told = f"{num_lost} workers lost, by what the plan holds" if num_lost else "no worker was lost"
    return _judge("nobody dies unplanned", wrong, told)


def judge_steps(found: Findings) -> Verdict:
    """Every step that the run came to was committed once: in one epoch, as its ranks tell."""
    name, run, last = "every step is committed once", found.disturbed, found.job.max_steps
    reached = last if run.is_done else min(run.find_reached(), last)
    committing = run.find_committing()
    if not reached and not committing:
        return Verdict(name, None, ("no step was committed",))
    recorded = Counter(line["step"] for line in run.steps)
    wrong = [
        f"step {step} was committed in {len(epochs)} epochs: {_list(epochs)}"
        for step, epochs in sorted(committing.items())
        if len(epochs) > 1
    ]
    wrong += [
        f"step {step} was committed by no rank"
        for step in range(1, reached + 1)
        if step not in committing
    ]
    wrong += [f"step {s} is in the record {n} times" for s, n in sorted(recorded.items()) if n > 1]
    wrong += [f"step {step} is none of {last}" for step in committing if not 1 <= step <= last]
    missing = find_missing_steps(run.steps, reached)
    if run.is_done:
        filled_at_s = [
            each.at_s for each in found.faults if each.kind == "fill_disk" and each.at_s is not None
        ]
        wrong += tell_missing_steps(
            missing,
            run.steps,
            run.events,
            run.commits,
            filled_at_s,
            has_wrong_clocks=found.has_wrong_clocks,
        )
    told = f"{last} steps" if reached == last else f"the {reached} that it came to, of {last} steps"
    if missing:
        told += (
            f"; {'nobody lived to report' if run.is_done else 'its record lacks'} {len(missing)}"
        )
    return _judge(name, wrong, told)


def judge_samples(found: Findings) -> Verdict:
    """Every committed step used the samples that the data order has for it, each once."""
    name, job, run = "every sample is used once", found.job, found.disturbed
    if not run.num_samples:
        return Verdict(name, None, ("no rank has told how many samples there are",))
    committing = run.find_committing()
    if not committing:
        return Verdict(name, None, ("no step was committed",))
    used = collect_samples(run.used, committing)
    order = SampleOrder(run.num_samples, job.seed, job.order)
    wrong: list[str] = []
    for step, indices in sorted(used.items()):
        expected = order.indices((step - 1) * job.batch, step * job.batch).tolist()
        if indices != sorted(expected):
            missing, extra = Counter(expected), Counter(indices)
            wrong.append(
                f"step {step}: samples {[*(missing - extra).elements()]} are missing, and "
                f"{[*(extra - missing).elements()]} too many"
            )
    told = f"{sum(map(len, used.values()))} samples in {len(used)} of {job.max_steps} steps"
    reached = job.max_steps if run.is_done else run.find_reached()
    unknown = [step for step in range(1, reached + 1) if step not in used]
    if not unknown:
        return _judge(name, wrong, told)
    named = ", ".join(map(str, unknown[:_SHOWN])) + (", …" if len(unknown) > _SHOWN else "")
    told += f"; of {len(unknown)} it isn't known which try was committed: steps {named}"
    return Verdict(name, False if wrong else None, (*_cut(wrong), told))


def judge_ranks(found: Findings) -> Verdict:
    """All ranks that hold the same part of the state hold the same bits of it."""
    name, ends = "ranks end bitwise equal", found.disturbed.ends
    if not ends and found.disturbed.is_done:
        return Verdict(name, False, ("it is done, and no rank has told what it holds",))
    if not ends:
        return Verdict(name, None, ("no rank has come to the end",))
    holders: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for end in ends:
        if end.digest is not None:
            holders[end.shard][end.digest].append(end.rank)
    wrong = [
        "; ".join(f"ranks {_list(ranks)} hold {digest}" for digest, ranks in by_digest.items())
        for by_digest in holders.values()
        if len(by_digest) > 1
    ]
    there = {end.rank for end in ends}
    last = max(found.disturbed.steps, key=lambda line: line["step"], default=None)
    world_size = len(ends) if last is None else last["world_size"]
    wrong += [f"rank {rank} has not told" for rank in range(world_size) if rank not in there]
    if not wrong and (unhashed := _tell_unhashed(found.disturbed)):
        return Verdict(name, None, unhashed)
    if not wrong and len(ends) == len(holders):
        return Verdict(name, None, ("each part has one holder: nothing was compared",))
    return _judge(name, wrong, f"{len(ends)} ranks, digest {_list({e.digest for e in ends})}")


def _tell_unhashed(run: RunEvidence) -> tuple[str, ...]:
    """Say which ranks could not hash what they held, and why."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for end in run.ends:
        if end.digest is None:
            by_reason[end.reason].append(end.rank)
    return tuple(
        f"{run.job_id}: ranks {_list(ranks)} could not hash what they held: {reason}"
        for reason, ranks in by_reason.items()
    )


def judge_flips(found: Findings) -> Verdict:
    """No step was committed with a bit that had flipped, and the rank was named."""
    name, run = "flipped bits are kept out", found.disturbed
    if not run.flips:
        return Verdict(name, None, ("no bit was flipped",))
    committing = run.find_committing()
    wrong = [
        f"step {flip.step} was committed in epoch {flip.epoch}, with a bit flipped on rank "
        f"{flip.rank}"
        for flip in run.flips
        if flip.epoch in committing.get(flip.step, ())
    ]
    is_skewed = found.has_wrong_clocks
    namings = [
        find_naming(flip, run.flips, run.events, run.steps, has_wrong_clocks=is_skewed)
        for flip in run.flips
    ]
    wrong += [
        f"rank {flip.rank} was not named, on which a bit flipped in step {flip.step}"
        for flip, naming in zip(run.flips, namings, strict=True)
        if naming is Naming.MISSING
    ]
    counts = Counter(namings)
    told = [f"{len(run.flips)} flipped, {counts[Naming.GIVEN]} named with their rank"]
    told += [f"{counts[each]} {each}" for each in Naming if each.is_excused and counts[each]]
    return _judge(name, wrong, "; ".join(told))


def judge_sameness(found: Findings) -> Verdict:
    """The run came to the same bits as one on which nothing fell."""
    name = "it ends as an undisturbed run"
    job, one, other = found.job, found.disturbed, found.undisturbed
    if other is None:
        return Verdict(name, None, ("left out, by --no-compare",))
    if not other.is_done:
        return Verdict(name, False, (f"that one {other.state}: {other.reason.strip()[:500]}",))
    if not job.deterministic:
        return Verdict(name, None, ("training.deterministic is false: bits may differ anyway",))
    lines = [line for run in (one, other) for line in run.steps]
    changed = [line for line in lines if line["world_size"] != job.target]
    if changed:
        return _judge_same_before(name, one, other, min(changed, key=lambda line: line["step"]))
    return _judge_same(name, one, other)


def _judge_same(name: str, one: RunEvidence, other: RunEvidence) -> Verdict:
    parting = find_parting(one.history(), other.history())
    wrong = [] if other.ends else ["no rank of that one has told what it holds"]
    if parting.step is not None:
        wrong.append(_tell_parting(parting.step, one, other))
    unhashed = {end.shard for run in (one, other) for end in run.ends if end.digest is None}
    ours, theirs = ({end.shard: end.digest for end in run.ends} for run in (one, other))
    wrong += [
        f"the state's part {shard[0]} of {shard[1]}: {ours.get(shard)}, undisturbed {theirs[shard]}"
        for shard in sorted(theirs.keys() - unhashed)
        if ours.get(shard) != theirs[shard]
    ]
    if unhashed and not wrong:
        return Verdict(name, None, (*_tell_unhashed(one), *_tell_unhashed(other)))
    told = f"{len(parting.shared)} steps compared, and the state of {len(theirs)} parts"
    return _judge(name, wrong, told)


def _judge_same_before(
    name: str, one: RunEvidence, other: RunEvidence, changed: Mapping[str, Any]
) -> Verdict:
    """Judge the steps before the one of this line, in which a world had other ranks."""
    parting, step = find_parting(one.history(), other.history()), changed["step"]
    if parting.step is not None and parting.step < step:
        return Verdict(name, False, (_tell_parting(parting.step, one, other),))
    num_before = sum(each < step for each in parting.shared)
    told = (
        f"not compared from step {step} on, nor the state: the world had {changed['world_size']} "
        f"ranks there, whose sums have other bits; the {num_before} steps before are the same"
    )
    return Verdict(name, None, (told,))


def _tell_parting(step: int, one: RunEvidence, other: RunEvidence) -> str:
    return f"they part at step {step} (trainflow bisect {one.job_id} {other.job_id} has more)"


def judge_time(found: Findings) -> Verdict:
    """The ledger has a cause for the time of every worker, from when it was asked for."""
    name = "all time has a cause"
    if found.has_wrong_clocks:
        return Verdict(name, None, ("clocks were wrong by which it is measured",))
    compared = compare_ledger(found.disturbed.events)
    if compared is None and found.disturbed.is_done and found.job.is_monitored:
        return Verdict(name, False, ("it is done and monitored, and told of no ledger",))
    if compared is None:
        return Verdict(name, None, ("it told of no ledger: it isn't monitored, or nobody lived",))
    charged_s, lived_s = compared
    text = f"the ledger has {charged_s:.2f} s, and its workers were there for {lived_s:.2f} s"
    is_wrong = abs(charged_s - lived_s) > _LEDGER_WITHIN * lived_s
    return _judge(name, [text] if is_wrong else [], text)


def judge_remains(found: Findings) -> Verdict:
    """Nothing of a run is left: no process, actor, placement group, shared memory or socket."""
    runs = [each for each in (found.undisturbed, found.disturbed) if each is not None]
    left = [f"{run.job_id}: {each}" for run in runs for each in run.left]
    strays = sorted({each for run in runs for each in run.strays})
    told = f"; new, and may be anybody's: {', '.join(_cut(strays))}" if strays else ""
    return _judge("nothing is left behind", left, f"{len(runs)} runs{told}")


def _list(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


INVARIANTS: tuple[Callable[[Findings], Verdict], ...] = (
    judge_end,
    judge_faults,
    judge_losses,
    judge_steps,
    judge_samples,
    judge_ranks,
    judge_flips,
    judge_sameness,
    judge_time,
    judge_remains,
)
