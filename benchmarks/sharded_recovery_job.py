"""TrainFlow's side of the benchmark of sharded recovery: a large model, and what became of it.

Process: every worker.
"""

import json
import os
from pathlib import Path

import xxhash
from torch import nn

from benchmarks import recovery_job, workload
from benchmarks.peers.events import EventLog
from trainflow import Session
from trainflow.computation.shards import local_part

Digests = dict[tuple[int, int], set[str]]
"""By step and rank: of the rank's weights, each time that the step was committed."""


class Args(recovery_job.Args):
    """Where the events and the digests of the run go, and what is trained."""

    size: workload.Size


def train(session: Session, args: Args) -> None:
    """Train until stopped; each committed step is an event, and a digest of this rank's weights."""
    log = EventLog(args.log_dir)
    digests = (args.log_dir / f"{os.getpid()}.digests").open("a", buffering=1)
    model = session.prepare(
        lambda: workload.build_model(seed=0, size=args.size), workload.make_optimizer
    )
    for step in session.steps():
        with step:
            number = recovery_job.take_step(session, step, model, log)
            line = {"step": number, "rank": log.rank, "digest": digest_of(model)}
            digests.write(json.dumps(line) + "\n")


def digest_of(model: nn.Module) -> str:
    """Return a hash of the weights that this rank holds."""
    digest = xxhash.xxh3_64()
    for parameter in model.parameters():
        digest.update(local_part(parameter).detach().numpy().data)
    return digest.hexdigest()


def read_digests(log_dir: Path) -> Digests:
    """Return what all processes of a run have written; a line that a kill has torn is left out."""
    found: Digests = {}
    for path in log_dir.glob("*.digests"):
        *lines, _ = path.read_text().split("\n")
        for line in map(json.loads, lines):
            found.setdefault((line["step"], line["rank"]), set()).add(line["digest"])
    return found


def differing_steps(disturbed: Digests, undisturbed: Digests) -> list[int]:
    """Return the steps after which some rank had other weights than in the undisturbed run.

    Where a process was killed between commit and digest, that rank has none of that step; it has
    of the ones that follow from it.
    """
    differing = {
        step
        for (step, rank), digests in disturbed.items()
        if digests != undisturbed.get((step, rank))
    }
    return sorted(differing)


def last_step(digests: Digests, num_ranks: int) -> int:
    """Return the newest step.

    Raises:
        ValueError: not every rank has a digest of it.
    """
    newest = max(step for step, _ in digests)
    ranks = {rank for step, rank in digests if step == newest}
    if ranks != set(range(num_ranks)):
        raise ValueError(f"step {newest} has digests of ranks {sorted(ranks)}, not of {num_ranks}")
    return newest
