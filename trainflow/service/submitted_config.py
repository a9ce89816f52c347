"""Read the job that a request is to submit, and refuse it with every reason at once.

Process: a replica of the service.  Pure: nothing that a job names is looked for, or imported; that
is the driver's work.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import cast

import yaml

from trainflow.config import JobConfig
from trainflow.config.checking import check_settings
from trainflow.config.problems import Problem, show
from trainflow.config.sources import Settings, describe_error, parse_yaml, require_shallow
from trainflow.service.documents import SubmitRequest
from trainflow.service.problems import ProblemError, ProblemItem, ProblemType

SOURCE = "config"
_MOST_VALUES = 100_000
# YAML is slow to read: what is refused must not keep other requests waiting for long.
_MOST_YAML_CHARS = 256 * 1024
_MOST_YAML_VALUES = 10_000
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True)
class JobFile:
    """A job as its driver will read it.

    Attributes:
        config: what it says.
        text: of the file.
        suffix: of the file's name: the text's form.
    """

    config: JobConfig
    text: str
    suffix: str


def read_job_file(request: SubmitRequest) -> JobFile:
    """Check the configuration in a request.

    Raises:
        SettingsError: it says something wrong.
        ProblemError: it is no configuration at all.
    """
    if isinstance(request.config, str):
        content, text, suffix = _parse(request.config), request.config, ".yaml"
    else:
        content, text, suffix = request.config, "", ".json"
    _require_plain(content)
    text = text or json.dumps(content)
    return JobFile(check_settings(JobConfig, content, source=SOURCE), text, suffix)


def fingerprint(request: SubmitRequest) -> str:
    """Return a hash that two requests share if they ask for the same."""
    asked = json.dumps(request.model_dump(), sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def _parse(text: str) -> Settings:
    if len(text) > _MOST_YAML_CHARS:
        got, expected = f"{len(text)} characters", f"at most {_MOST_YAML_CHARS}"
        raise _refuse(got, f"a job file of {expected}; or give it as JSON")
    try:
        with _ONE_AT_A_TIME:
            content = parse_yaml(text, _MOST_YAML_VALUES)
    except yaml.YAMLError as error:
        raise _refuse(describe_error(error), "valid YAML") from error
    if not isinstance(content, dict):
        raise _refuse(show(content), "a section of keys and values")
    return cast("Settings", content)


def _require_plain(content: Settings) -> None:
    """Refuse what grows when it is written out, and text that no file or database takes.

    YAML can name one value in many places, each of them in many places: a page of text stands for
    more values than any machine holds.
    """
    try:
        require_shallow(content)
    except ValueError as error:
        raise _refuse(str(error), "a job file") from error
    waiting: list[object] = [content]
    num_values = 0
    while waiting:
        value = waiting.pop()
        num_values += 1
        if num_values > _MOST_VALUES:
            raise _refuse(f"more than {_MOST_VALUES} values", "a job file")
        if isinstance(value, Mapping):
            section = cast("Mapping[object, object]", value)
            waiting += [*section.keys(), *section.values()]
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
        elif isinstance(value, str) and not _is_storable(value):
            raise _refuse(f"text with a character that can't be kept: {show(value)}", "plain text")


def _is_storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def _refuse(got: str, expected: str) -> ProblemError:
    problem = Problem(SOURCE, got, expected, f"mend {SOURCE}")
    item = ProblemItem(
        setting=problem.setting, got=problem.got, expected=problem.expected, change=problem.change
    )
    return ProblemError(ProblemType.INVALID_CONFIGURATION, str(problem), [item])
