"""Find the training function that a job names, and check the job's args against its args model.

Process: driver, to refuse a bad job before anything starts; every worker, to run it.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from trainflow.config.importing import uncollected
from trainflow.config.problems import Origins, Problem, find_problems, show, summarize
from trainflow.config.secret_args import find_secrets
from trainflow.errors import ConfigError, EntrypointError

_SHAPE = "def train(session: Session, args: Args) -> None, where Args is a pydantic model"


@dataclass(frozen=True)
class ResolvedEntrypoint:
    """A training function that has the right shape.

    Attributes:
        spec: the ``module:function`` it was found under.
        function: takes a session and an instance of ``args_model``.
        args_model: the function's own pydantic model of its args.
    """

    spec: str
    function: Callable[[Any, Any], object]
    args_model: type[BaseModel]

    def check_args(self, args: Mapping[str, Any]) -> BaseModel:
        """Validate a job's ``args``; raises ConfigError with every problem found, one a line.

        Unknown keys are refused, even by a model that would ignore them, unless it keeps them.
        """
        keeps_unknown = self.args_model.model_config.get("extra") == "allow"
        extra = "allow" if keeps_unknown else "forbid"
        try:
            return self.args_model.model_validate(args, extra=extra)
        except ValidationError as error:
            problems = find_problems(
                error,
                model=self.args_model,
                data=args,
                origins=Origins(default=self.spec),
                prefix="args",
            )
            raise ConfigError(summarize(problems)) from error

    def refuse_secrets(self, args: Mapping[str, Any]) -> None:
        """Refuse a job's ``args`` that their model has as secrets, unless they have no value.

        Raises:
            ConfigError: with every such arg, one a line; or as `check_args`.
        """
        if problems := find_secrets(self.check_args(args), args, self.spec):
            raise ConfigError(summarize(problems))

    def fill_args(self, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a job's ``args`` and the defaults of those that it doesn't name, as JSON has them.

        Left out are defaults that a function computes (a class as ``default_factory`` is none): a
        time or a token is another each time, or on each machine, or isn't to be kept.

        Returns:
            None if the training function would get other args by them, since secrets are masked in
            JSON, it knows no infinity, and a validator may not bear its own outcome; or if they
            have a secret in clear, which the model's own serializer may write.

        Raises:
            ConfigError: as `check_args`.
        """
        given = self.check_args(args)
        computed = {
            name
            for name, field in self.args_model.model_fields.items()
            if name not in given.model_fields_set
            and not isinstance(field.default_factory, type | None)
        }
        try:
            filled = given.model_dump(
                mode="json", by_alias=True, round_trip=True, exclude=computed, warnings=False
            )
            again = self.check_args(json.loads(json.dumps(filled, allow_nan=False)))
            same = again.model_dump(exclude=computed) == given.model_dump(exclude=computed)
            is_open = same and not find_secrets(again, filled, self.spec)
        except Exception:  # noqa: BLE001  validators and types of the job's own may raise anything
            return None
        return filled if is_open else None


def resolve_entrypoint(spec: str) -> ResolvedEntrypoint:
    """Import a training function and find the pydantic model of its args.

    Args:
        spec: ``module:function``; the module is looked up on Python's path.

    Raises:
        EntrypointError: it can't be imported, or is no function of a session and an args model.
    """
    function = import_function(spec, setting="entrypoint")
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise _refusal("entrypoint", f"{spec} ({error})", _SHAPE) from error
    args_parameter = list(signature.parameters.values())[1]
    args_model = _args_model_of(args_parameter, function)
    if args_model is None:
        got = f"{spec}, whose second parameter is {str(args_parameter)!r}"
        raise _refusal("entrypoint", got, _SHAPE)
    return ResolvedEntrypoint(spec, function, args_model)


def import_function(spec: str, *, setting: str, kind: str = "a function") -> Callable[..., object]:
    """Import the ``module:function`` that ``setting`` names; raises EntrypointError.

    Args:
        spec: names it.
        setting: what names that.
        kind: what it should be, for a person.
    """
    module_name, colon, function_name = spec.partition(":")
    if not (module_name and colon and function_name):
        raise _refusal(setting, show(spec), "module:function, as in jobs.pretrain_lm:train")
    try:
        with uncollected():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises at import
        got = f"{spec}, whose import raised {type(error).__name__}: {error}"
        expected = "a module that can be imported from Python's path"
        raise _refusal(setting, got, expected, _how_to_import(module_name, error)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "no such name" if function is None else f"a {type(function).__name__}"
        raise _refusal(setting, f"{spec}, which is {found}", f"{kind} in {module.__file__}")
    return function


def _args_model_of(
    parameter: inspect.Parameter, function: Callable[..., object]
) -> type[BaseModel] | None:
    """Resolve one annotation alone: that of the session may be importable to type checkers only."""
    annotated = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hint = get_type_hints(annotated, namespace)[parameter.name]
    except (NameError, SyntaxError, TypeError):
        return None
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _how_to_import(module_name: str, error: BaseException) -> str:
    """Return a hint for a script, or a module looked for in the wrong folder; else nothing."""
    if isinstance(error, SystemExit):
        return ', or put what only a script does below `if __name__ == "__main__":`'
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not f"{module_name}.".startswith(f"{missing}."):
        return ""
    top = module_name.partition(".")[0]
    holds = f"{top}/" if "." in module_name else f"{top}.py"
    return f", or run from the folder that holds {holds} (or add that to PYTHONPATH)"


def _refusal(setting: str, got: str, expected: str, hint: str = "") -> EntrypointError:
    problem = Problem(setting, got, expected, f"change {setting} or what it names{hint}")
    return EntrypointError(str(problem))
