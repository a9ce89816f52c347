"""How gradients travel: the job file's section ``communication``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from trainflow.config.problems import Problem, show
from trainflow.config.section import Section

_MIB = 1024 * 1024

PlainCompression = Literal["none", "bf16", "fp8", "int8", "int4", "top_k", "power_sgd"]
Compression = Literal[PlainCompression, "auto"]

_NEED_FEEDBACK = frozenset({"top_k", "power_sgd"})
FORMATS_OF_SHARDS = ("none", "bf16", "fp8", "int8", "int4")
"""Forms in which gradients of sharded parameters can travel."""

_BLOCKWISE = frozenset({"fp8", "int8", "int4", "auto"})
_ONLY_WITH = {"top_k_fraction": "top_k", "power_sgd_rank": "power_sgd"}


class CommunicationConfig(Section):
    """How gradients travel."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library; auto takes nccl where workers have GPUs, else gloo."""

    bucket_bytes: PositiveInt = 4 * _MIB
    """Gradient bytes summed in one collective; fixes the bucket layout, so part of the result."""

    compression: Compression = "none"
    """Form of gradients on the wire: bf16 halves the traffic and rounds; int8 or fp8, and int4,
    send a quarter and an eighth, in blocks that share a scale; top_k the largest elements alone,
    power_sgd matrices of low rank; auto measures the link in the first step, and takes int8 where
    that promises sums 1.1 times as fast."""

    per_parameter: dict[str, PlainCompression] = Field(default_factory=dict[str, PlainCompression])
    """Other forms for parameters whose names match a pattern (``*``, ``?``, ``[...]``); of several
    patterns the first counts."""

    error_feedback: bool | None = None
    """Whether each rank adds to a step's gradients what compression left out of those before; takes
    two times the gradients' size in each worker's shared memory. Null: with top_k and power_sgd,
    which need it."""

    warmup_steps: NonNegativeInt = 0
    """So many steps at first are summed uncompressed."""

    top_k_fraction: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Of a bucket's elements that each rank sends with top_k."""

    power_sgd_rank: PositiveInt = 4
    """Of the matrices that power_sgd sends."""

    hierarchical: bool | None = None
    """Whether fp8, int8 and int4 sum inside each node first, uncompressed, and compress only what
    goes between nodes; where several nodes have equally many workers, two or more. Null: unless
    ``training.deterministic``, since the bits of a sum then depend on who is on which node."""

    @property
    def feeds_back(self) -> bool:
        """Whether there is error feedback."""
        needed = bool(self._used & _NEED_FEEDBACK)
        return needed if self.error_feedback is None else self.error_feedback

    def sums_by_node(self, *, deterministic: bool) -> bool:
        """Return whether blockwise sums go by node, where nodes are alike."""
        return not deterministic if self.hierarchical is None else self.hierarchical

    def compression_of(self, parameter: str) -> Compression:
        """Return the form in which a parameter's gradient travels."""
        for pattern, compression in self.per_parameter.items():
            if fnmatchcase(parameter, pattern):
                return compression
        return self.compression

    @property
    def _used(self) -> set[str]:
        """The forms that there are: a pattern that takes every parameter leaves the rest unused."""
        used: set[str] = set()
        for pattern, compression in self.per_parameter.items():
            used.add(compression)
            if pattern and not pattern.strip("*"):
                return used
        return used | {self.compression}

    def conflicts(self, *, deterministic: bool = False) -> list[Problem]:
        """Return what is wrong with settings that are right one by one.

        Args:
            deterministic: ``training.deterministic``.
        """
        problems = self._node_conflicts(deterministic=deterministic)
        problems += self._uncompressed_conflicts()
        chosen = ", ".join(sorted(self._used))
        if self._used & _NEED_FEEDBACK and self.error_feedback is False:
            expected = f"true with communication.compression = {chosen}, which leaves most out"
            change = "leave it out, or choose another compression"
            problems.append(Problem("communication.error_feedback", "false", expected, change))
        for setting, compression in _ONLY_WITH.items():
            value = getattr(self, setting)
            if value != type(self).model_fields[setting].default and compression not in self._used:
                got = str(value)
                expected = f"nothing with communication.compression = {chosen}"
                change = f"leave it out, or set communication.compression to {compression}"
                problems.append(Problem(f"communication.{setting}", got, expected, change))
        return problems

    def _uncompressed_conflicts(self) -> list[Problem]:
        """Return what asks for something of compression where nothing is compressed."""
        if self._used != {"none"}:
            return []
        where, change = "communication.compression = none", "leave it out, or choose a compression"
        problems: list[Problem] = []
        if self.compression != "none":
            where = "a pattern of communication.per_parameter that excludes every parameter"
            change = "leave it out, or narrow that pattern"
            problems.append(
                Problem(
                    "communication.compression",
                    show(self.compression),
                    f"none with {where}",
                    change,
                )
            )
        if self.error_feedback:
            expected = f"false with {where}, which leaves nothing out"
            problems.append(Problem("communication.error_feedback", "true", expected, change))
        if self.warmup_steps:
            expected = f"0 with {where}: every step is summed uncompressed"
            got = str(self.warmup_steps)
            problems.append(Problem("communication.warmup_steps", got, expected, change))
        return problems

    def _node_conflicts(self, *, deterministic: bool) -> list[Problem]:
        setting = "communication.hierarchical"
        if not self.hierarchical:
            return []
        if deterministic:
            expected = "false or null with training.deterministic: bits depend on who is where"
            change = "leave it out, or set training.deterministic to false"
            return [Problem(setting, "true", expected, change)]
        if not self._used & _BLOCKWISE:
            chosen = ", ".join(sorted(self._used))
            expected = f"false or null with communication.compression = {chosen}"
            change = "leave it out, or set communication.compression to int8, fp8, int4 or auto"
            return [Problem(setting, "true", expected, change)]
        return []
