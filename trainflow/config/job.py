"""What a job file says: every setting, its meaning, its default and its bounds.

Process: any.  Pure: plain values in, a frozen configuration out.

A setting stands here once it does something. Every section refuses keys that it doesn't know, so
a misspelt setting, or one of a later release, is never silently dropped.
"""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, to_json

from trainflow.config.altering import altering_names
from trainflow.config.checkpoint import CheckpointConfig
from trainflow.config.communication import CommunicationConfig
from trainflow.config.failures import FailuresConfig
from trainflow.config.monitoring import MonitoringConfig
from trainflow.config.parallel import ParallelConfig
from trainflow.config.problems import Problem, conflicts_context, show, summarize
from trainflow.config.section import PositiveFloat, Section, is_module_path
from trainflow.config.start_methods import ModuleName, StartMethod, preload_conflicts

_MIB = 1024 * 1024
_LEAST_COPY_RATE = 64 * 1024  # a piece of a copy a second: silence ends a connection
_MAX_SEED = 2**63 - 1
_RAY_DECIMALS = 4

AS_KEPT = {"as_kept": True}
"""Context in which settings that a checkpoint or a record holds are read: those that conflict today
didn't, or did nothing, in the release that ran them."""


def _check_function_path(path: str) -> str:
    if not is_module_path(path):
        raise ValueError("module:function, as in jobs.pretrain_lm:train")
    return path


FunctionPath = Annotated[str, AfterValidator(_check_function_path)]


class TrainingConfig(Section):
    """What one step is, and how many there are."""

    max_steps: PositiveInt
    """Number of optimizer steps after which the job has succeeded."""

    global_batch_size: PositiveInt
    """Samples in one step, over all workers; with ``batch_scaling``, over ``workers.target``."""

    batch_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Whether a step of a smaller or larger world has fewer or more samples in proportion, and how
    the learning rate follows the batch. none: a step is the same in every world."""

    microbatch_size: PositiveInt
    """Samples in one forward and backward pass; bounded by a worker's memory."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type that autocast computes in; parameters and sums stay fp32. fp16 scales the loss."""

    clip_norm: PositiveFloat | None = 1.0
    """Largest norm of the whole gradient; null leaves gradients as they are."""

    seed: Annotated[int, Field(ge=0, le=_MAX_SEED)] = 0
    """Source of every random number of the run: initialisation, sample order, dropout."""

    deterministic: bool = False
    """Sum in rank order and use deterministic kernels: slower, and bit-identical between runs."""

    max_skipped_steps: PositiveInt = 5
    """Steps in a row whose gradient may be not finite before the job stops."""


class DataConfig(Section):
    """Where samples come from, and in which order. Exactly one of ``url`` and ``dataset``."""

    url: str | None = None
    """Packed token corpus to train on, as any URL that fsspec reads."""

    validation_url: str | None = None
    """Packed token corpus to evaluate on."""

    dataset: FunctionPath | None = None
    """Function ``module:function`` that takes the job's args and returns a map-style dataset."""

    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the samples within a pass; a new permutation each pass when shuffled."""

    prefetch_batches: PositiveInt = 4
    """Microbatches read ahead in the background."""


def _check_ray_units(amount: float) -> float:
    if amount != round(amount, _RAY_DECIMALS):
        raise ValueError(f"at most {_RAY_DECIMALS} decimals, which is as fine as Ray counts")
    return amount


def _check_whole_above_one(amount: float) -> float:
    if amount > 1 and not amount.is_integer():
        raise ValueError("a whole number, or a share of at most 1")
    return amount


ResourceAmount = Annotated[
    float, Field(ge=0, allow_inf_nan=False), AfterValidator(_check_ray_units)
]


class ResourcesConfig(Section):
    """What one worker takes of its node, in Ray's units."""

    CPU: ResourceAmount = 1
    """CPU cores reserved for one worker."""

    GPU: Annotated[ResourceAmount, AfterValidator(_check_whole_above_one)] = 0
    """GPUs reserved for one worker; 0 trains on the CPU."""


class WorkersConfig(Section):
    """How many processes train, and how many stand by."""

    minimum: PositiveInt
    """Fewest workers that training goes on with; with fewer the job waits."""

    target: PositiveInt
    """Workers that training starts with, and returns to after losses."""

    maximum: PositiveInt | None = None
    """Workers that training may grow to where nodes have room for them; null: ``target``."""

    spares: NonNegativeInt = 0
    """Warm workers beyond the target, each ready to take a dead worker's rank."""

    resources: ResourcesConfig = ResourcesConfig()
    """What each worker, spare or not, takes of its node."""

    start_method: StartMethod = "forkserver"
    """Workers are forked from a process that has imported torch, or each imports it anew."""

    preload: list[ModuleName] = Field(default_factory=list[ModuleName])
    """Further modules that are imported before workers are forked, as what a job imports."""

    @property
    def most(self) -> int:
        """How many may train at once."""
        return self.target if self.maximum is None else self.maximum


class SnapshotConfig(Section):
    """What is kept of the state in the memory of nodes, for when every worker is gone at once."""

    every_steps: PositiveInt | None = 1
    """Steps between two snapshots; each costs one copy of the state. null keeps none."""

    replicas: NonNegativeInt = 1
    """Further nodes that keep each snapshot."""

    max_bytes_per_s: Annotated[int, Field(ge=_LEAST_COPY_RATE)] | None = None
    """Most that a node sends to others for that; null: as much as goes while no rank waits."""

    copy_within_s: PositiveFloat = 30.0
    """Seconds for a node's copies to reach others; those that are behind take what they need."""


class JobConfig(Section):
    """A whole job, checked. Passed to every process of the run as it is."""

    schema_version: Literal[1] = 1
    """Version of this format."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """What the job is called; job ids begin with it."""

    entrypoint: FunctionPath
    """Training function ``module:function``; it takes a session and its args."""

    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed to the training function, after its own args model has checked them."""

    training: TrainingConfig
    """What one step is, and how many there are."""

    data: DataConfig
    """Where samples come from, and in which order."""

    workers: WorkersConfig
    """How many processes train, and how many stand by."""

    parallel: ParallelConfig = ParallelConfig()
    """How the model is spread over the workers."""

    communication: CommunicationConfig = CommunicationConfig()
    """How gradients travel."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is kept of the state where it outlives every machine of the run."""

    snapshot: SnapshotConfig = SnapshotConfig()
    """What is kept of the state in the memory of nodes, for when every worker is gone at once."""

    failures: FailuresConfig = FailuresConfig()
    """How much may go wrong, and how soon it is noticed."""

    monitoring: MonitoringConfig = MonitoringConfig()
    """What the job tells while it runs."""

    runtime_env: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Ray runtime environment of the workers: packages, files, environment variables."""

    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Free text kept with the job, for searching."""

    def as_sent(self) -> str:
        """Return it as JSON for another process, with infinity and NaN, which strict JSON lacks."""
        return to_json(self.model_dump(), inf_nan_mode="constants").decode()

    def num_copying(self, world_size: int) -> int:
        """Return how many nodes copy the state out; of sharded state all that have a part of it."""
        return world_size if self.parallel.is_sharded else 1 + self.snapshot.replicas

    def shard_size(self, world_size: int) -> int:
        """Return how many ranks hold the whole state between them, in a world of so many."""
        return self.parallel.shard_size(world_size, self.workers.target)

    @property
    def group_size(self) -> int:
        """How many workers become members, or stop being members, together."""
        return self.parallel.group_size(self.workers.target)

    @model_validator(mode="after")
    def _refuse_conflicts(self, info: ValidationInfo) -> Self:
        if info.context == AS_KEPT:
            return self
        problems = [
            *_batch_conflicts(self.training, self.workers),
            *_world_conflicts(self.workers),
            *_source_conflicts(self.data),
            *_variable_conflicts(self.runtime_env),
            *preload_conflicts(self.workers.preload, self.workers.start_method, self.runtime_env),
            *_backend_conflicts(self.communication, self.workers),
            *self.communication.conflicts(deterministic=self.training.deterministic),
            *self.checkpoint.conflicts(set(altering_names(type(self)))),
            *self.failures.conflicts(
                self.communication,
                self.parallel,
                deterministic=self.training.deterministic,
                has_store=self.checkpoint.url is not None,
            ),
            *_idle_conflicts(self.failures, self.training, self.workers),
            *self.monitoring.conflicts(self.name, makes_checkpoints=self.checkpoint.makes_any),
            *self.parallel.factor_conflicts(self.workers.minimum, self.workers.target),
            *self.parallel.conflicts(
                self.communication,
                snapshot_every_steps=self.snapshot.every_steps,
                gpus=self.workers.resources.GPU,
            ),
        ]
        if problems:
            context = conflicts_context(problems)
            raise PydanticCustomError(
                "conflicts", "{summary}", context | {"summary": summarize(problems)}
            )
        return self


def _batch_conflicts(training: TrainingConfig, workers: WorkersConfig) -> list[Problem]:
    problems: list[Problem] = []
    batch = training.global_batch_size
    if training.microbatch_size > batch:
        expected = f"at most training.global_batch_size = {batch}"
        change = "lower it or raise training.global_batch_size"
        got = str(training.microbatch_size)
        problems.append(Problem("training.microbatch_size", got, expected, change))
    grows = workers.maximum is not None and training.batch_scaling == "none"
    name, most = ("workers.maximum", workers.most) if grows else ("workers.target", workers.target)
    if batch < most:
        expected = f"at least {name} = {most}, one sample a worker"
        change = f"raise it or lower {name}: the global batch is below the world"
        problems.append(Problem("training.global_batch_size", str(batch), expected, change))
    return problems


def _idle_conflicts(
    failures: FailuresConfig, training: TrainingConfig, workers: WorkersConfig
) -> list[Problem]:
    """Refuse what could never do anything."""
    problems: list[Problem] = []
    if failures.replace_stragglers and not workers.spares:
        change = "leave it out, or keep a spare that takes the rank"
        expected = "false with workers.spares = 0"
        problems.append(Problem("failures.replace_stragglers", "true", expected, change))
    if failures.replace_stragglers and workers.most == 1:
        expected = "false with workers.target = 1, where there is nobody to compare with"
        change = "leave it out, or raise that"
        problems.append(Problem("failures.replace_stragglers", "true", expected, change))
    every, name = failures.spot_check_every_steps, "failures.spot_check_every_steps"
    if every is not None and workers.most == 1:
        expected = "null with workers.target = 1, where there is nobody to compare with"
        problems.append(Problem(name, str(every), expected, "leave it out, or raise that"))
    if every is not None and every > training.max_steps:
        expected = f"at most training.max_steps = {training.max_steps}"
        problems.append(Problem(name, str(every), expected, "lower it, or leave it out"))
    return problems


def _world_conflicts(workers: WorkersConfig) -> list[Problem]:
    problems: list[Problem] = []
    if workers.minimum > workers.target:
        expected = f"at most workers.target = {workers.target}"
        change = "lower it or raise workers.target"
        problems.append(Problem("workers.minimum", str(workers.minimum), expected, change))
    if workers.most < workers.target:
        expected = f"at least workers.target = {workers.target}"
        change = "raise it or leave it out"
        problems.append(Problem("workers.maximum", str(workers.maximum), expected, change))
    return problems


def _source_conflicts(data: DataConfig) -> list[Problem]:
    if (data.url is None) != (data.dataset is None):
        return []
    got = f"url = {show(data.url)} and dataset = {show(data.dataset)}"
    change = "set data.url to a packed corpus or data.dataset to module:function"
    return [Problem("data", got, "exactly one of data.url and data.dataset", change)]


def _variable_conflicts(runtime_env: dict[str, Any]) -> list[Problem]:
    """Refuse what no process's environment can have."""
    where, variables = "runtime_env.env_vars", runtime_env.get("env_vars")
    if variables is None:
        return []
    if not isinstance(variables, dict):
        expected, change = "variables by name", "write NAME: value, a line each"
        return [Problem(where, f"a {type(variables).__name__}", expected, change)]  # no secret
    by_name = cast("dict[object, object]", variables)
    names = [str(name) for name in by_name]
    beginnings = [name[: name.find("=") + 1] or name for name in names]  # a secret may follow
    expected = "a name that is not empty and has neither = nor NUL"
    change = "choose another name, and give the value after a colon"
    return [
        Problem(where, f"the name {show(shown)}", expected, change)
        for name, shown in zip(names, beginnings, strict=True)
        if not name or "=" in name or "\0" in name
    ] + [
        Problem(f"{where}.{name}", "a value with NUL", "text without NUL", "leave NUL out")
        for name, value in by_name.items()
        if "\0" in str(value) and "=" not in str(name)  # a secret may follow
    ]


def _backend_conflicts(communication: CommunicationConfig, workers: WorkersConfig) -> list[Problem]:
    """Refuse what a library can't carry: gloo reads the host's memory, NCCL wants a GPU a rank."""
    backend, gpus = communication.backend, workers.resources.GPU
    problems: list[Problem] = []
    if backend == "nccl" and not gpus:
        expected = "gloo or auto where workers.resources.GPU = 0"
        change = "change it, or give each worker a GPU in workers.resources.GPU"
        problems.append(Problem("communication.backend", show(backend), expected, change))
    if backend == "gloo" and gpus:
        expected = f"nccl or auto where workers.resources.GPU = {gpus:g}"
        change = "leave it out, or train on CPUs with workers.resources.GPU: 0"
        problems.append(Problem("communication.backend", show(backend), expected, change))
    if 0 < gpus < 1 < workers.most:
        expected = "whole GPUs where there may be several workers: NCCL refuses two ranks on one"
        change = "raise it to 1, or train with one worker"
        problems.append(Problem("workers.resources.GPU", f"{gpus:g}", expected, change))
    return problems
