"""Write down what a rank uses, commits and ends with, so that a chaos campaign can judge the run.

One file a worker, one JSON line a fact, each written whole and before what follows from it: the
samples of a microbatch before it is computed, a step right after it was committed. So what a
process knew before it was killed can be read afterwards.

Process: worker, in a campaign.  Thread: training.  Blocks: on the local disk, for a line.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from trainflow.computation.state_tree import flatten_state
from trainflow.computation.training_state import TrainingState
from trainflow.computation.weights import bytes_of
from trainflow.data.batch import Batch
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase, ShardId
from trainflow.errors import StateError


@dataclass(frozen=True)
class StateDigest:
    """The hash of what a rank holds.

    Attributes:
        digest: 16 hex digits; None: it could not be hashed.
        reason: why not.
    """

    digest: str | None
    reason: str = ""


class Witness:
    """What one worker has to tell.

    Args:
        folder: of the run, in the campaign's folder.
        worker_id: names this worker.
        num_samples: in one pass over the training data.
    """

    def __init__(self, folder: Path, worker_id: str, num_samples: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"witness-{worker_id}.jsonl").open("ab", buffering=0)
        self._step = 0
        self._epoch = INITIAL_EPOCH
        self._applied: int | None = None
        self._write("began", num_samples=num_samples)

    def on_stamp(self, phase: Phase, step: int, epoch: EpochId) -> None:
        """The training thread enters a phase: after the optimizer's, the user's means a commit."""
        if epoch == INITIAL_EPOCH:  # a spare that rehearses
            return
        self._step, self._epoch = step, epoch
        if phase is Phase.OPTIMIZER:
            self._applied = step
        elif phase is Phase.USER and step == self._applied:
            self._applied = None
            self._write("committed", step=step, epoch=[epoch.incarnation, epoch.counter])
        elif phase in {Phase.DATA, Phase.PARKED}:  # it was void after all
            self._applied = None

    def on_read(self, batch: Batch) -> None:
        """A microbatch of the step is about to be computed."""
        epoch = [self._epoch.incarnation, self._epoch.counter]
        self._write("used", step=self._step, epoch=epoch, indices=list(batch.indices))

    def on_end(self, rank: int | None, shard: ShardId, state: StateDigest) -> None:
        """The training function has returned after the last step."""
        part = [shard.index, shard.count]
        self._write("ended", rank=rank, shard=part, digest=state.digest, reason=state.reason)

    def close(self) -> None:
        """Tell nothing more."""
        self._file.close()

    def _write(self, fact: str, **more: object) -> None:
        self._file.write(json.dumps({"fact": fact, **more}).encode() + b"\n")


def digest_state(state: TrainingState) -> StateDigest:
    """Hash the bits of all that a rank holds: its parts, where it is sharded.

    What compression has left out is left out: each rank has its own.
    """
    tree = {name: part for name, part in state.tree().items() if name != "residuals"}
    try:
        flat = flatten_state(_in_order(tree))
    except StateError as error:
        return StateDigest(None, str(error))
    digest = xxhash.xxh3_64(json.dumps(flat.skeleton).encode())
    for path, tensor in flat.tensors.items():
        digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(bytes_of(tensor.cpu()))
    return StateDigest(digest.hexdigest())


def _in_order(node: Any) -> Any:  # noqa: ANN401  a tree
    """Sort mappings by key: who was given a state may have put it together in another order."""
    match node:
        case dict():
            items = sorted(node.items(), key=lambda item: str(item[0]))
            return {key: _in_order(value) for key, value in items}
        case list() | tuple():
            return type(node)([_in_order(value) for value in node])
        case _:
            return node
