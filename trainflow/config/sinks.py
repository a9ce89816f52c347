"""Where a run's curves go beside its own record: the section ``monitoring.sinks``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainflow.config.section import Section

SinkKind = Literal["tensorboard", "wandb", "mlflow"]

PACKAGES: dict[SinkKind, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""What each needs to be installed where the coordinator runs; the extra ``sinks`` has all."""


def _check_folder(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError("an absolute path, as /data/curves: the coordinator writes there")
    return path


class SinkConfig(Section):
    """One of them. What it can't take is left out, counted and told; training never waits."""

    kind: SinkKind
    """What takes the curves; wandb writes offline, for ``wandb sync``."""

    folder: Annotated[str, AfterValidator(_check_folder)]
    """Folder on the machine where the coordinator runs: as a rule the head, or on a shared disk."""

    project: Annotated[str, Field(min_length=1)] | None = None
    """Project of W&B, experiment of MLflow, folder in TensorBoard's; null: the job's name."""
