"""What a server of forks has to know of a job. Plain values, pickled by Ray."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainflow.config.job import JobConfig
from trainflow.config.start_methods import are_forks_alike


@dataclass(frozen=True)
class ForkServerSettings:
    """What a server of forks has to know of a job's workers.

    Attributes:
        import_paths: where they look for modules first.
        num_cpus: that each has.
        preload: modules that the job wants imported beside what all workers import.
        variables: of their runtime environment; may be secrets.
    """

    import_paths: tuple[str, ...]
    num_cpus: float
    preload: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @classmethod
    def of(cls, job: JobConfig, import_paths: tuple[str, ...]) -> "ForkServerSettings | None":
        """Return those of a job; None if its workers are to be started by Python.

        Args:
            job: that.
            import_paths: where its modules are found.
        """
        if job.workers.start_method != "forkserver" or not are_forks_alike(job.runtime_env):
            return None
        return cls(
            import_paths,
            job.workers.resources.CPU,
            tuple(job.workers.preload),
            dict(job.runtime_env.get("env_vars") or {}),
        )
