"""Prove that a checkpoint can be gone on from: restore it in a process of its own.

Process: any; one of its own restores.  Blocks: until that has answered, or the time is over.
"""

from dataclasses import dataclass

from trainflow.checkpointing.torch_process import Leash, Surroundings, run_with_torch

_MODULE = "trainflow.computation.drill"
_HERE = Surroundings()


@dataclass(frozen=True)
class DrillReport:
    """What became of a drill.

    Attributes:
        step: of the checkpoint.
        num_tensors: that were restored.
        num_bytes: of them.
        restore_s: seconds to read, verify and load them.
        total_s: seconds with building the model, and with comparing.
        flaws: what is not, bit for bit, what was saved; empty if all is.
    """

    step: int
    num_tensors: int
    num_bytes: int
    restore_s: float
    total_s: float
    flaws: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the restored state is the saved one."""
        return not self.flaws


def run_drill(
    url: str,
    step: int,
    *,
    timeout_s: float,
    surroundings: Surroundings = _HERE,
    leash: Leash | None = None,
) -> DrillReport:
    """Restore a checkpoint through the code that a run restores with, and compare every byte.

    The training function that the checkpoint names is called, as far as its first step, on the CPU.
    Needs memory for the state, and the job's data, as a worker does. The store is only read.

    Args:
        url: of the store; a local path is absolute.
        step: which checkpoint.
        timeout_s: how long it may take before it is killed.
        surroundings: in what it is restored: where the job's modules are, which variables are set.
        leash: by which another thread ends it.

    Raises:
        StoreError: the store doesn't answer.
        CheckpointError: the checkpoint is damaged, of another training function, was ended, or took
            too long.
        TrainFlowError: the training function, or its data, can't be had here.
    """
    answer = run_with_torch(
        _MODULE,
        {"url": url, "step": step},
        surroundings=surroundings,
        timeout_s=timeout_s,
        leash=leash,
    )
    return DrillReport(
        step=answer["step"],
        num_tensors=answer["num_tensors"],
        num_bytes=answer["num_bytes"],
        restore_s=answer["restore_s"],
        total_s=answer["total_s"],
        flaws=tuple(answer["flaws"]),
    )
