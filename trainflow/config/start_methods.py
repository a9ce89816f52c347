"""How the processes of workers come into being.

Process: any.  Pure.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator

from trainflow.config.problems import Problem, show
from trainflow.config.section import is_module_name

StartMethod = Literal["forkserver", "spawn"]

# Of a runtime environment, what a fork has as a Python that was started would. Whatever else there
# is means another Python, or another machine's. Files of workers alone would come too late for what
# is imported by then; what it is forked from has those that it inherits itself.
_AS_STARTED = frozenset({"env_vars", "config"})
_AS_INHERITED = _AS_STARTED | {"working_dir", "py_modules", "excludes"}


def _check_module_name(name: str) -> str:
    if not is_module_name(name):
        raise ValueError("the name of a module, as in transformers")
    return name


ModuleName = Annotated[str, AfterValidator(_check_module_name)]


def are_forks_alike(runtime_env: Collection[str]) -> bool:
    """Whether a fork is what Ray would start under a job's environment with these fields."""
    return set(runtime_env) <= _AS_STARTED


def inherits_alike(runtime_env: Collection[str]) -> bool:
    """Whether it is, where all of the run inherits an environment with these fields."""
    return set(runtime_env) <= _AS_INHERITED


def preload_conflicts(
    preload: Sequence[str], start_method: StartMethod, runtime_env: Collection[str]
) -> list[Problem]:
    """Refuse modules that are to be imported before workers are forked, where none are.

    Args:
        preload: the modules' names.
        start_method: of workers.
        runtime_env: the fields of theirs.
    """
    if not preload:
        return []
    got, change = show(list(preload)), "leave it out: there each worker imports what it needs"
    if start_method != "forkserver":
        expected = f"none with workers.start_method = {start_method}"
        return [Problem("workers.preload", got, expected, change)]
    if not are_forks_alike(runtime_env):
        others = ", ".join(sorted(set(runtime_env) - _AS_STARTED))
        return [Problem("workers.preload", got, f"none with runtime_env's {others}", change)]
    return []
