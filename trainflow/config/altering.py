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

ALTERING_BY_ACTION = {
    "skip": ("action", "norm_z", "max_skips"),
    "rewind": ("action", "spike_z", "rise_ratio", "max_rewinds", "rewind_margin"),
}
"""Those of ``monitoring.anomalies`` that do so where ``action`` is one that alters anything."""


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
    by_anomalies = {name for names in ALTERING_BY_ACTION.values() for name in names}
    yield from (f"monitoring.anomalies.{name}" for name in sorted(by_anomalies))
