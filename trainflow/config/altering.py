"""Which settings a run's results depend on, by name.

Pure.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from trainflow.config.communication import CommunicationConfig
from trainflow.config.problems import section_model

ALTERING: dict[str, frozenset[str] | None] = {
    "entrypoint": None,
    "args": None,
    "training": None,
    "parallel": frozenset({"mode", "gather"}),
    "data": frozenset({"url", "validation_url", "dataset", "order"}),
    "communication": frozenset(CommunicationConfig.model_fields) - {"backend"},
}
"""Sections whose settings alter a run; all of a section where no names are given."""

ALTERING_WITH_BATCH_SCALING: dict[str, frozenset[str] | None] = {"workers": frozenset({"target"})}
"""Those that do so beside them where a step's size depends on the world."""

ALTERING_WITH_SKIPS = ("action", "norm_z", "max_skips")
"""Those of ``monitoring.anomalies`` that do so where steps are skipped for their norms."""


def altering_names(model: type[BaseModel]) -> Iterator[str]:
    """Yield the dotted names of all of them, but for a job's own args.

    Args:
        model: of a whole job.
    """
    for section, named in (ALTERING | ALTERING_WITH_BATCH_SCALING).items():
        inner = section_model(model.model_fields[section])
        if inner is not None:
            fields = inner.model_fields
            yield from (f"{section}.{name}" for name in fields if named is None or name in named)
        elif section != "args":
            yield section
    yield from (f"monitoring.anomalies.{name}" for name in ALTERING_WITH_SKIPS)
