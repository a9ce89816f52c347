"""What all sections of a job file have in common.

Process: any.  Pure.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the job file: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
