"""What a job file may say of how workers are started."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.distributed.jobs import make_job
from trainflow.config.job import JobConfig
from trainflow.config.start_methods import are_forks_alike, inherits_alike


def configure(workers: dict[str, Any], runtime_env: dict[str, Any] | None = None) -> JobConfig:
    told = make_job().model_dump()
    told["workers"] |= workers
    return JobConfig.model_validate(told | {"runtime_env": runtime_env or {}})


def test_workers_are_forked_unless_the_job_says_otherwise():
    assert make_job().workers.start_method == "forkserver"
    assert configure({"start_method": "spawn"}).workers.start_method == "spawn"


def test_modules_to_preload_are_named():
    assert configure({"preload": ["transformers", "a.b"]}).workers.preload == [
        *("transformers", "a.b"),
    ]


@pytest.mark.parametrize("name", ["", "a-b", "a:b", "a.", ".a", "a b"])
def test_what_is_no_module_s_name_is_refused(name: str):
    with pytest.raises(ValidationError, match="the name of a module"):
        configure({"preload": [name]})


@pytest.mark.parametrize(
    ("workers", "runtime_env", "told"),
    [
        ({"start_method": "spawn"}, {}, "none with workers.start_method = spawn"),
        ({}, {"pip": ["einops"], "env_vars": {"A": "1"}}, "none with runtime_env's pip"),
    ],
)
def test_modules_are_not_to_be_preloaded_where_nothing_is_forked(
    workers: dict[str, Any], runtime_env: dict[str, Any], told: str
):
    configure(workers, runtime_env)
    with pytest.raises(ValidationError) as refusal:
        configure(workers | {"preload": ["transformers"]}, runtime_env)
    for part in ("workers.preload", told, "leave it out"):
        assert part in str(refusal.value)


def test_variables_keep_forks_alike_and_another_python_or_files_do_not():
    assert are_forks_alike({"env_vars": 1, "config": 1})
    assert are_forks_alike(())
    for field in ("conda", "working_dir", "py_modules"):
        assert not are_forks_alike({"env_vars": 1, field: 1})


def test_files_that_all_of_the_run_inherits_do_too():
    assert inherits_alike({"env_vars": 1, "working_dir": 1, "py_modules": 1})
    assert not inherits_alike({"conda": 1})
