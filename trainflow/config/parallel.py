"""How the model is spread over the workers: the job file's section ``parallel``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainflow.config.communication import FORMATS_OF_SHARDS, CommunicationConfig
from trainflow.config.problems import Problem, show
from trainflow.config.section import Section

Recomputed = Literal["none", "selective", "full"]


class ParallelConfig(Section):
    """How the model is spread over the workers."""

    mode: Literal["ddp", "zero1", "zero2", "fsdp", "hsdp"] = "ddp"
    """ddp: every worker holds the whole model and a share of each batch; fsdp: each holds an equal
    part of every parameter, gradient and optimizer state, and gathers a layer when it needs it;
    zero2: the same, but a layer stays gathered from forward to backward; zero1: and for all
    microbatches of a step; hsdp: as fsdp within groups of workers that each hold all of it."""

    shard: Literal["auto"] | Annotated[int, Field(ge=2)] = "auto"
    """Workers in a group of hsdp, which lie on one node where that can be; auto: as ``replicate``
    has it."""

    replicate: Literal["auto"] | Annotated[int, Field(ge=2)] = "auto"
    """Groups of hsdp; auto: as ``shard`` has it, or 2. A smaller world has fewer of them."""

    activation_checkpointing: Recomputed = "none"
    """What of a layer's forward is thrown away and computed again in backward: none; full: all but
    its input; selective: all but its input and the results of matrix products and attention."""

    gather: Literal["fp32", "bf16", "fp8"] = "fp32"
    """Type that parameters of a sharded model are gathered in; shards, sums and the optimizer stay
    fp32. bf16 sends half, and computes all of a layer in bf16; so does fp8, which sends a quarter:
    matrices as 8 bits a number, in blocks that share a scale."""

    cpu_offload: bool = False
    """Parameters, gradients and optimizer states of a sharded model lie in the host's memory, and
    the optimizer runs there; only what is gathered is on the GPU."""

    @property
    def is_sharded(self) -> bool:
        """Whether workers hold different parts of the state."""
        return self.mode != "ddp"

    def group_size(self, target: int) -> int:
        """Return how many workers come and go together, where ``target`` are wanted in all."""
        if self.mode != "hsdp":
            return 1
        if self.shard != "auto":
            return self.shard
        return target // (2 if self.replicate == "auto" else self.replicate)

    def shard_size(self, world_size: int, target: int) -> int:
        """Return how many ranks hold the whole state between them, in a world of ``world_size``."""
        if self.mode == "hsdp":
            return self.group_size(target)
        return world_size if self.is_sharded else 1

    def factor_conflicts(self, minimum: int, target: int) -> list[Problem]:
        """Return why worlds between ``minimum`` and ``target`` can't be made of whole groups."""
        if self.mode != "hsdp":
            change = "leave it out, or set parallel.mode to hsdp"
            given = {"parallel.shard": self.shard, "parallel.replicate": self.replicate}
            return [
                Problem(name, show(value), f"auto with parallel.mode = {self.mode}", change)
                for name, value in given.items()
                if value != "auto"
            ]
        size = max(2, self.group_size(target))
        replicate = max(2, target // size) if self.replicate == "auto" else self.replicate
        if target != size * replicate:
            expected = f"a product of parallel.shard = {self.shard} and parallel.replicate = "
            expected += f"{self.replicate}, both at least 2"
            change = "choose two numbers whose product it is"
            return [Problem("workers.target", show(target), expected, change)]
        if minimum < size:
            expected = f"at least {size}: fewer workers don't hold the whole model"
            change = "raise it, or choose a smaller parallel.shard"
            return [Problem("workers.minimum", show(minimum), expected, change)]
        return []

    def conflicts(
        self, communication: CommunicationConfig, *, snapshot_every_steps: int | None, gpus: float
    ) -> list[Problem]:
        """Return what is wrong with settings that are right one by one.

        Args:
            communication: how gradients travel.
            snapshot_every_steps: ``snapshot.every_steps``.
            gpus: ``workers.resources.GPU``.
        """
        problems = self._offload_conflicts(gpus)
        if self.gather != "fp32" and not self.is_sharded:
            expected = f"fp32 with parallel.mode = {self.mode}, which gathers nothing"
            change = "leave it out and set training.precision, or choose another parallel.mode"
            problems.append(Problem("parallel.gather", show(self.gather), expected, change))
        if self.is_sharded:
            problems += self._sharding_conflicts(communication, snapshot_every_steps)
        return problems

    def _offload_conflicts(self, gpus: float) -> list[Problem]:
        setting = "parallel.cpu_offload"
        if not self.cpu_offload:
            return []
        problems: list[Problem] = []
        if not self.is_sharded:
            expected = f"false with parallel.mode = {self.mode}, where each GPU holds the model"
            change = "leave it out, or set parallel.mode to fsdp or zero2"
            problems.append(Problem(setting, "true", expected, change))
        if not gpus:
            expected = "false where workers.resources.GPU = 0: all is in the host's memory there"
            change = "leave it out, or give each worker a GPU in workers.resources.GPU"
            problems.append(Problem(setting, "true", expected, change))
        return problems

    def _sharding_conflicts(
        self, communication: CommunicationConfig, snapshot_every_steps: int | None
    ) -> list[Problem]:
        """Return what sharded state can't do, or not yet."""
        mode = f"parallel.mode = {self.mode}"
        problems: list[Problem] = []
        if communication.compression not in FORMATS_OF_SHARDS:
            expected = f"one of {', '.join(FORMATS_OF_SHARDS)} with {mode}"
            change = "choose one of them, or set parallel.mode to ddp"
            got = show(communication.compression)
            problems.append(Problem("communication.compression", got, expected, change))
        unused = {
            "communication.per_parameter": communication.per_parameter or None,
            "communication.error_feedback": communication.error_feedback or None,
            "communication.hierarchical": communication.hierarchical or None,
        }
        change = "leave it out, or set parallel.mode to ddp"
        problems += [
            Problem(name, show(value), f"nothing with {mode}", change)
            for name, value in unused.items()
            if value is not None
        ]
        if snapshot_every_steps != 1:
            expected = f"1 with {mode}: a rank takes what only it holds along when it dies"
            got = show(snapshot_every_steps)
            problems.append(Problem("snapshot.every_steps", got, expected, "leave it out"))
        return problems
