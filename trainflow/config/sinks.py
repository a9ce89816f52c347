"""Where a run's curves go beside its own record: the section ``monitoring.sinks``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

import posixpath
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainflow.config.problems import Problem
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


def _check_project(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("a name, as pretraining: TensorBoard's files lie in a folder of that name")
    return name


class SinkConfig(Section):
    """One of them. What it can't take is left out, counted and told; training never waits."""

    kind: SinkKind
    """What takes the curves; wandb writes offline, for ``wandb sync``."""

    folder: Annotated[str, AfterValidator(_check_folder)]
    """Folder on the machine where the coordinator runs: as a rule the head, or on a shared disk."""

    project: Annotated[str, Field(min_length=1), AfterValidator(_check_project)] | None = None
    """Project of W&B, experiment of MLflow, folder in TensorBoard's; null: the job's name."""

    def find_place(self, job_name: str) -> tuple[str, ...]:
        """Return what no two sinks may share: one would write what the other has written."""
        if self.kind == "wandb":
            return (self.kind,)  # the library has one run a process
        folder = posixpath.normpath(self.folder).replace("//", "/", 1)
        return self.kind, folder, self.project or job_name


def find_repeated(sinks: Sequence[SinkConfig], job_name: str) -> list[Problem]:
    """Return which sinks would write where an earlier one does."""
    problems: list[Problem] = []
    first: dict[tuple[str, ...], int] = {}
    for number, sink in enumerate(sinks):
        earlier = first.setdefault(sink.find_place(job_name), number)
        if earlier < number:
            is_alone = sink.kind == "wandb"
            expected = "one of this kind" if is_alone else "another folder or project"
            problems.append(
                Problem(
                    f"monitoring.sinks.{number}",
                    f"a {sink.kind} beside that of monitoring.sinks.{earlier}",
                    f"{expected}: each step would be written twice",
                    "leave one of them out" + ("" if is_alone else ", or give it its own"),
                )
            )
    return problems
