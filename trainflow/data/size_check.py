"""Refuse training data that can't fill one step.

Process: driver, before anything starts; every worker, before it trains.
"""

from collections.abc import Sized

from trainflow.config.job import JobConfig
from trainflow.data.corpus_format import HOW_TO_PACK
from trainflow.errors import DataError


def count_training_samples(dataset: object, job: JobConfig) -> int:
    """Return how many samples a job's training data has.

    Args:
        dataset: what ``data.url`` or ``data.dataset`` opened.
        job: says which of the two, and how large a global batch is.

    Raises:
        DataError: it has no length, one that can't be told, or fewer samples than one global batch.
    """
    setting, source, more = "data.dataset", job.data.dataset, "return more samples"
    if job.data.url is not None:
        setting, source, more = "data.url", job.data.url, f"pack more text ({HOW_TO_PACK})"
    if not isinstance(dataset, Sized):
        raise DataError(
            f"{setting}: got a {type(dataset).__name__} from {source}, which has no length; "
            "expected a map-style dataset, with __len__ and __getitem__ or __getitems__; return "
            "one of those"
        )
    try:
        num_samples = len(dataset)
    except (Exception, SystemExit) as error:  # Python's own refusal too: below 0, above 2**63 - 1
        raise DataError(
            f"{setting}: got a {type(dataset).__name__} from {source}, whose length raised "
            f"{type(error).__name__}: {error}; expected the number of samples; mend its __len__, "
            f"or change {setting}"
        ) from error
    batch = job.training.global_batch_size
    if num_samples < batch:
        raise DataError(
            f"{setting}: got {num_samples} samples from {source}; expected at least one global "
            f"batch, training.global_batch_size = {batch}; lower it or {more}"
        )
    return num_samples
