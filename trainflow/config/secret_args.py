"""Find secrets among a job's args: those are kept, as the job gives them, with what it makes.

Process: any.  Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from trainflow.config.problems import Problem

_UNSEEN = object()
"""In place of what a job gave where a validator has made something else of it."""

_Part = tuple[str, object, object]
"""A key, the value there, and what that was made of."""


def find_secrets(args: BaseModel, given: Mapping[str, Any], source: str) -> list[Problem]:
    """Return a problem for each arg that is typed as a secret and that the job gives a value.

    One that code of the job's own makes, as a default or in a validator, isn't kept.

    Args:
        args: as the training function gets them.
        given: what they were made of.
        source: whose args they are.
    """
    expected = "none, since args are kept with every checkpoint and record"
    change = "give it by runtime_env.env_vars and read os.environ"
    return [
        Problem(name, "a secret", expected, change, source) for name in _find(args, given, "args")
    ]


def _find(value: object, given: object, name: str) -> Iterator[str]:
    """Yield the dotted names of secrets in ``value``, which was made of ``given``."""
    if isinstance(value, SecretStr | SecretBytes | Secret):
        if given is not None and not _is_nothing(cast("SecretStr", value).get_secret_value()):
            yield name
        return
    for key, inner, inner_given in _parts_of(value, given):
        yield from _find(inner, inner_given, f"{name}.{key}" if key else name)


def _is_nothing(secret: object) -> bool:
    return secret is None or (isinstance(secret, str | bytes) and not secret)


def _parts_of(value: object, given: object) -> Iterator[_Part]:
    """Yield what ``value`` holds that was given."""
    if isinstance(value, RootModel):
        yield "", cast("RootModel[object]", value).root, given
    elif isinstance(value, BaseModel):
        yield from _fields_of(value, given)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _field(each.name, getattr(value, each.name), given, [each.name])
    elif isinstance(value, Mapping):
        yield from _items_of(cast("Mapping[object, object]", value), given)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _items_of(dict(enumerate(cast("Iterable[object]", value))), given)


def _items_of(items: Mapping[Any, object], given: object) -> Iterator[_Part]:
    """Yield all of a mapping or, by number, of a list."""
    found: Mapping[Any, object] = {}
    if isinstance(given, Mapping):
        found = cast("Mapping[Any, object]", given)
    elif isinstance(given, list):
        found = dict(enumerate(cast("list[object]", given)))
    for key, value in items.items():
        yield str(key), value, found.get(key, _UNSEEN)


def _fields_of(model: BaseModel, given: object) -> Iterator[_Part]:
    for key, field in type(model).model_fields.items():
        if key in model.model_fields_set:
            yield from _field(key, getattr(model, key), given, _names_of(key, field))
    yield from _items_of(model.model_extra or {}, given)


def _field(key: str, value: object, given: object, names: Sequence[str]) -> Iterator[_Part]:
    """Yield a field, unless none was given under any of its names."""
    if not isinstance(given, Mapping):
        yield key, value, _UNSEEN
        return
    found = cast("Mapping[str, object]", given)
    for name in names:
        if name in found:
            yield key, value, found[name]
            return


def _names_of(key: str, field: FieldInfo) -> list[str]:
    """Return the names under which a model takes a field, the first part alone of a path."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    paths = [choice.path[0] if isinstance(choice, AliasPath) else choice for choice in choices]
    return [str(name) for name in (*paths, field.alias, key) if name is not None]
