"""What all sections of a job file have in common.

Process: any.  Pure.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LONGEST_S = 30 * 86_400.0
"""Of times that are waited for: libraries below fail with some that are longer."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_S)]


def is_module_path(path: str) -> bool:
    """Whether it is ``module:name``, as far as that can be told without an import."""
    module, colon, name = path.partition(":")
    return bool(colon) and name.isidentifier() and is_module_name(module)


def is_module_name(name: str) -> bool:
    """Whether a module may be called so."""
    return all(map(str.isidentifier, name.split(".")))


class Section(BaseModel):
    """A part of the job file: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
