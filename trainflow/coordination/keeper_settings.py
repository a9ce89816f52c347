"""What a Keeper is told of its job.

Plain values, pickled by Ray.
"""

from dataclasses import dataclass

from trainflow.config.job import JobConfig, SnapshotConfig
from trainflow.coordination.forkserver.settings import ForkServerSettings


@dataclass(frozen=True)
class KeeperSettings:
    """What a Keeper is told of its job.

    Attributes:
        lease_s: seconds unheard after which it kills its workers.
        checkpoint_url: where snapshots go that are for storage; None if none are.
        snapshot: when what it sends of snapshots to other nodes may go.
        notice_file: where it looks whether its machine is to be taken back; None: nowhere.
        notice_source: ``module:name`` of what it asks that in place of a file; None: nobody.
        import_paths: where that module is found.
        directory: of the run, on the head; None: what workers print is not copied there.
        forks: what workers are forked from; None: none are.
    """

    lease_s: float
    checkpoint_url: str | None
    snapshot: SnapshotConfig
    notice_file: str | None = None
    notice_source: str | None = None
    import_paths: tuple[str, ...] = ()
    directory: str | None = None
    forks: ForkServerSettings | None = None

    @classmethod
    def of(
        cls, job: JobConfig, directory: str | None, import_paths: tuple[str, ...]
    ) -> "KeeperSettings":
        """Return what a job says of them.

        Args:
            job: that.
            directory: of the run.
            import_paths: where the job's modules are found.
        """
        return cls(
            lease_s=job.failures.lease_s,
            checkpoint_url=job.checkpoint.url,
            snapshot=job.snapshot,
            notice_file=job.failures.preemption_notice,
            notice_source=job.failures.preemption_source,
            import_paths=import_paths,
            directory=directory,
            forks=ForkServerSettings.of(job, import_paths),
        )
