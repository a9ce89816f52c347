"""Every check of a job that needs no cluster, so that a bad one is refused before anything starts.

Process: driver.  Blocks: on importing the job's modules, on opening its data and on reading a
sample of a dataset of the job's own.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.store import CheckpointStore
from trainflow.cli.checkpoints_choice import absolute
from trainflow.cli.output import say
from trainflow.config import (
    JobConfig,
    ResolvedEntrypoint,
    import_function,
    load_job,
    resolve_entrypoint,
)
from trainflow.config.checkpoint import CheckpointConfig
from trainflow.config.fingerprint import changed_settings
from trainflow.config.sinks import PACKAGES
from trainflow.coordination.notice_plugin import build_source
from trainflow.data.corpus_format import Split
from trainflow.data.map_dataset import check_first_sample
from trainflow.data.size_check import count_training_samples
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import CheckpointError, ConfigError, DataError


@dataclass(frozen=True)
class CheckedJob:
    """A job in which nothing is wrong that can be seen from here.

    Attributes:
        config: its settings; the args with their defaults, for whoever can't load their model.
        args: what the training function will be given, defaults filled in.
        num_samples: samples in a pass over the training data.
    """

    config: JobConfig
    args: BaseModel
    num_samples: int


def check_job(path: Path, overrides: Sequence[str] = ()) -> CheckedJob:
    """Read a job and check all that it names.

    Args:
        path: the job file.
        overrides: options such as ``training.max_steps=10``.

    Raises:
        ConfigError: a setting is wrong, or what it names can't be imported or built.
        DataError: the training data can't be opened or read, or is smaller than one global batch.
        CheckpointError: the store of checkpoints doesn't answer.
    """
    config, entrypoint, args = _resolve(path, overrides)
    _check_sinks(config)
    if config.failures.preemption_source is not None:
        build_source(config.failures.preemption_source)
    dataset = _open_training_data(config, args)
    if config.data.validation_url is not None:
        _open_corpus(config.data.validation_url, "validation", setting="data.validation_url")
    num_samples = count_training_samples(dataset, config)
    if config.data.dataset is not None:
        check_first_sample(dataset, config.data.dataset)
    config = _accept_equal_args(config, entrypoint)
    find_resumable(config)
    return CheckedJob(config, args, num_samples)


def read_job(path: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Return a job as a run of it is recorded, its data and checkpoints unseen.

    Raises:
        ConfigError: a setting is wrong, or the training function can't be imported.
    """
    return _resolve(path, overrides)[0]


def _resolve(
    path: Path, overrides: Sequence[str]
) -> tuple[JobConfig, ResolvedEntrypoint, BaseModel]:
    """Return a job with its args' defaults among the settings, its function, and the args."""
    config = _locate_checkpoints(load_job(path, overrides))
    if config.runtime_env:
        _check_runtime_env(config.runtime_env)
    _look_in_working_directory()
    entrypoint = resolve_entrypoint(config.entrypoint)
    args = entrypoint.check_args(config.args)
    entrypoint.refuse_secrets(config.args)
    _check_preload(config)
    return _name_defaults(config, entrypoint), entrypoint, args


def _check_preload(config: JobConfig) -> None:
    """Refuse modules that aren't here: the cluster, as a rule, has what this machine has."""
    absent = {name: why for name in config.workers.preload if (why := _find_absence(name))}
    if not absent:
        return
    reasons = "; ".join(dict.fromkeys(absent.values()))
    raise ConfigError(
        f"workers.preload: got {', '.join(absent)}, expected modules that can be imported "
        f"({reasons}); install what is missing, here and on the workers' nodes, or leave it out"
    )


def _find_absence(name: str) -> str:
    """Return why there is no module of a name; empty if there is one."""
    try:
        return "" if find_spec(name) else f"there is no {name}"
    except Exception as error:  # noqa: BLE001  a package that it is in may raise anything
        return f"{type(error).__name__}: {error}"


def _check_sinks(config: JobConfig) -> None:
    """Refuse sinks whose package isn't here: the cluster, as a rule, has what this machine has."""
    for sink in config.monitoring.sinks:
        found = find_spec(PACKAGES[sink.kind])
        if found is None or found.origin is None:  # else a folder of that name beside the job
            raise ConfigError(
                f"monitoring.sinks: got {sink.kind}, expected its package to be installed; "
                "pip install 'trainflow[sinks]', here and where the coordinator runs, or leave it "
                "out"
            )


def _check_runtime_env(environment: Mapping[str, Any]) -> None:
    from trainflow.coordination.runtime_env import check_runtime_env  # noqa: PLC0415  loads Ray

    check_runtime_env(environment)


def _name_defaults(config: JobConfig, entrypoint: ResolvedEntrypoint) -> JobConfig:
    """Put the args' defaults among the settings: checkpoints keep these, to be compared with."""
    filled = entrypoint.fill_args(config.args)
    if filled is None:
        say(
            "note: args: got some that are others after JSON (a secret, infinity, a strict tuple), "
            "expected the same; so checkpoints keep only those that the job names, infinity and "
            "NaN as null, and a changed default isn't noticed",
            err=True,
        )
        return config
    return config.model_copy(update={"args": filled})


def _accept_equal_args(config: JobConfig, entrypoint: ResolvedEntrypoint) -> JobConfig:
    """Accept, by name, args that a checkpoint doesn't name or writes otherwise, and that are equal.

    A checkpoint of an earlier release names only the args that its job did, as they were written
    there, and a model of args may have grown. One that isn't named counts as the default of today.
    If that was another when the checkpoint was made, nothing tells. The coordinator compares
    too, and can't load the model: so what is found equal here is passed on as accepted.
    """
    saved, now = _read_saved_settings(config), config.model_dump(mode="json")
    if not isinstance(saved.get("args"), dict):
        return config
    named: dict[str, Any] = saved["args"]
    try:
        filled = entrypoint.fill_args({k: v for k, v in named.items() if k in config.args})
    except ConfigError:
        return config  # the model has changed too much to tell: each difference is refused by name
    alike = saved | {"args": named | (filled or {})}
    equal = changed_settings(saved, now).keys() - changed_settings(alike, now).keys()
    accept = [*config.checkpoint.accept, *sorted(equal)]
    checkpoint = config.checkpoint.model_copy(update={"accept": accept})
    return config.model_copy(update={"checkpoint": checkpoint})


def _read_saved_settings(config: JobConfig) -> dict[str, Any]:
    """Return those of the newest checkpoint that the run might go on from; none if none is read."""
    for folder in (config.checkpoint.url, config.checkpoint.resume):
        if isinstance(folder, str) and folder not in {"auto", "never"}:
            store = CheckpointStore(folder)
            for step in reversed(store.committed_steps()):
                with suppress(CheckpointError):  # whoever goes on from there tells of it
                    return store.read_manifest(step).config
    return {}


def _locate_checkpoints(config: JobConfig) -> JobConfig:
    """Make a local folder's path absolute: workers have other working directories."""
    named = {"url": config.checkpoint.url, "resume": config.checkpoint.resume}
    local: dict[str, str] = {}
    for setting, value in named.items():
        if isinstance(value, str) and value not in {"auto", "never"}:
            try:
                local[setting] = absolute(value)
            except ConfigError as error:
                raise ConfigError(f"checkpoint.{setting}: {error}") from None
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update=local)})


def _look_in_working_directory() -> None:
    """Find the job's modules beside the job, where the installed command wouldn't look."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _open_training_data(config: JobConfig, args: BaseModel) -> object:
    """Open what every worker will open."""
    if config.data.url is not None:
        return _open_corpus(config.data.url, "train", setting="data.url")
    assert config.data.dataset is not None, "the configuration requires one of url and dataset"
    make = import_function(config.data.dataset, setting="data.dataset")
    try:
        return make(args)
    except (Exception, SystemExit) as error:  # whatever the job's own code raises
        raise DataError(
            f"data.dataset: got {config.data.dataset}, which raised {type(error).__name__}: "
            f"{error}; expected a map-style dataset; mend it, or change data.dataset"
        ) from error


def _open_corpus(url: str, split: Split, *, setting: str) -> TokenCorpus:
    try:
        return TokenCorpus.open(url, split)
    except DataError as error:
        raise DataError(
            f"{setting}: got {url!r}; expected a packed token corpus; change {setting}: {error}"
        ) from error


def _describe_checkpoints(config: JobConfig) -> str:
    settings = config.checkpoint
    if settings.url is None:
        return "none"
    stored = find_resumable(config)
    begin = f"goes on from step {stored[-1].step}" if stored else "begins at step 0"
    return f"{_describe_cadence(settings)}, in {settings.url}; {begin}"


def _describe_cadence(settings: CheckpointConfig) -> str:
    cadence: list[str] = []
    if settings.every_steps is not None:
        cadence.append(f"every {settings.every_steps} steps")
    if settings.every_s == "auto":
        cadence.append("at the interval that loses least")
    elif settings.every_s is not None:
        cadence.append(f"every {settings.every_s:g} s")
    return f"{', '.join(cadence)} and at the end" if cadence else "at the end"


def describe_job(job: CheckedJob) -> str:
    """Return what would run, for a person."""
    config = job.config
    training, workers = config.training, config.workers
    resources = workers.resources
    data = f"{config.data.dataset or config.data.url} ({job.num_samples} samples)"
    lines = {
        "name": config.name,
        "entrypoint": config.entrypoint,
        "args": to_json(job.args.model_dump(mode="json"), inf_nan_mode="constants").decode(),
        "data": f"{data}, {config.data.order}",
        "training": f"{training.max_steps} steps of {training.global_batch_size} samples in "
        f"microbatches of {training.microbatch_size}, {training.precision}",
        "workers": f"{workers.target} (at least {workers.minimum}, at most {workers.most}) and "
        f"{workers.spares} spares, "
        f"each with {resources.CPU:g} CPU and {resources.GPU:g} GPU",
        "checkpoints": _describe_checkpoints(config),
    }
    return "\n".join(["the job is valid", *(f"  {name:<12}{text}" for name, text in lines.items())])
