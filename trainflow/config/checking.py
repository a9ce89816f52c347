"""Check plain values against a model of settings, whatever they were read from.

Process: any.  Pure.
"""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from trainflow.config.problems import Origins, Problem, find_problems, summarize
from trainflow.config.sources import Override, Settings
from trainflow.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class SettingsError(ConfigError):
    """Settings are wrong.

    Attributes:
        problems: every one that was found, for whoever shows them one by one.
    """

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()):
        super().__init__(message)
        self.problems = problems


def check_settings(
    model: type[Model],
    content: Settings | Problem,
    changes: Iterable[Override | Problem] = (),
    *,
    source: str,
) -> Model:
    """Return the settings that ``content`` says, with ``changes`` over it.

    Args:
        model: what they are checked against.
        content: plain values, changed in place; or why they can't be read.
        changes: settings given elsewhere, in ascending order of precedence.
        source: of the content, for whoever reads about a problem.

    Raises:
        SettingsError: with every problem found.
    """
    changes = list(changes)
    origins = Origins(default=source)
    problems = [item for item in (content, *changes) if isinstance(item, Problem)]
    if not isinstance(content, Problem):
        for change in changes:
            if isinstance(change, Override):
                _apply(change, content, origins)
        try:
            settings = model.model_validate(content)
        except ValidationError as error:
            problems += find_problems(error, model=model, data=content, origins=origins)
        else:
            if not problems:
                return settings
    raise SettingsError(summarize(problems), tuple(problems))


def _apply(override: Override, settings: Settings, origins: Origins) -> None:
    """Set one value in place, making the sections that lead to it."""
    *sections, key = override.path
    inner = settings
    for depth, section in enumerate(sections, start=1):
        if not isinstance(inner.get(section), dict):
            inner[section] = {}
            origins.record(".".join(override.path[:depth]), override.source)
        inner = cast("dict[str, Any]", inner[section])
    inner[key] = override.value
    origins.record(".".join(override.path), override.source)
