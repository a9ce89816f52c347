"""Every check of a job that needs no cluster, so that a bad one is refused before anything starts.

Process: driver.  Blocks: on importing the job's modules and on opening its corpora.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from trainflow.config import JobConfig, import_function, load_job, resolve_entrypoint
from trainflow.data.corpus_format import HOW_TO_PACK, Split
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import DataError


@dataclass(frozen=True)
class CheckedJob:
    """A job in which nothing is wrong that can be seen from here.

    Attributes:
        config: its settings.
        args: what the training function will be given, defaults filled in.
        num_samples: samples in a pass over the corpus; None where a function makes the dataset.
    """

    config: JobConfig
    args: BaseModel
    num_samples: int | None


def check_job(path: Path, overrides: Sequence[str] = ()) -> CheckedJob:
    """Read a job and check all that it names.

    Args:
        path: the job file.
        overrides: options such as ``training.max_steps=10``.

    Raises:
        ConfigError: a setting is wrong, or a function that it names can't be imported.
        DataError: a corpus is missing, damaged or smaller than one global batch.
    """
    config = load_job(path, overrides)
    _look_in_working_directory()
    args = resolve_entrypoint(config.entrypoint).check_args(config.args)
    if config.data.dataset is not None:
        import_function(config.data.dataset, setting="data.dataset")
    return CheckedJob(config, args, _check_corpora(config))


def _look_in_working_directory() -> None:
    """Find the job's modules beside the job, where the installed command wouldn't look."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _check_corpora(config: JobConfig) -> int | None:
    """Return the samples in the training corpus, if there is one."""
    data = config.data
    if data.validation_url is not None:
        _count_samples(data.validation_url, "validation", setting="data.validation_url")
    if data.url is None:
        return None
    num_samples = _count_samples(data.url, "train", setting="data.url")
    batch = config.training.global_batch_size
    if num_samples < batch:
        raise DataError(
            f"data.url: got a corpus of {num_samples} samples at {data.url!r}; expected at least "
            f"one global batch, training.global_batch_size = {batch}; lower it or pack more text "
            f"({HOW_TO_PACK})"
        )
    return num_samples


def _count_samples(url: str, split: Split, *, setting: str) -> int:
    try:
        return len(TokenCorpus.open(url, split))
    except DataError as error:
        raise DataError(
            f"{setting}: got {url!r}; expected a packed token corpus; change {setting}: {error}"
        ) from error


def describe_job(job: CheckedJob) -> str:
    """Return what would run, for a person."""
    config = job.config
    training, workers = config.training, config.workers
    resources = workers.resources
    data = config.data.dataset or f"{config.data.url} ({job.num_samples} samples)"
    lines = {
        "name": config.name,
        "entrypoint": config.entrypoint,
        "args": job.args.model_dump_json(),
        "data": f"{data}, {config.data.order}",
        "training": f"{training.max_steps} steps of {training.global_batch_size} samples in "
        f"microbatches of {training.microbatch_size}, {training.precision}",
        "workers": f"{workers.target} (at least {workers.minimum}) and {workers.spares} spares, "
        f"each with {resources.CPU:g} CPU and {resources.GPU:g} GPU",
    }
    return "\n".join(["the job is valid", *(f"  {name:<11}{text}" for name, text in lines.items())])
