"""Which samples a rank reads in a step, and the datasets they come from.

Process: every rank.  Thread: training; reading ahead has a thread of its own (`MicrobatchLoader`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from pydantic import BaseModel

from trainflow.config.entrypoint import import_function
from trainflow.config.job import JobConfig
from trainflow.data.batch import Batch
from trainflow.data.batch_scaling import scale_step
from trainflow.data.loader import MicrobatchLoader
from trainflow.data.map_dataset import MapDataset
from trainflow.data.order import Microbatch, SampleOrder, deal_microbatches
from trainflow.data.size_check import count_training_samples
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError


class DataFeed:
    """The training data of one rank, wherever in the world it stands at the moment.

    Attributes:
        dataset: the training samples.
        on_read: called with each batch that this rank is about to compute.
    """

    def __init__(self, job: JobConfig, dataset: MapDataset, validation: MapDataset | None):
        self.dataset = dataset
        self.on_read: Callable[[Batch], None] | None = None
        self._job = job
        self._microbatch_size = job.training.microbatch_size
        self._num_validation_samples = 0 if validation is None else len(validation)
        order = SampleOrder(len(dataset), job.training.seed, job.data.order)
        self._loader = MicrobatchLoader(dataset, order, prefetch_batches=job.data.prefetch_batches)
        self._validation: MicrobatchLoader | None = None
        if validation is not None:
            in_order = SampleOrder(len(validation), job.training.seed, "sequential")
            self._validation = MicrobatchLoader(validation, in_order, prefetch_batches=1)

    def deal(self, consumed_samples: int, world_size: int, rank: int) -> tuple[Microbatch, ...]:
        """Return this rank's microbatches of the step that begins at ``consumed_samples``."""
        batch, size = scale_step(self._job, world_size).num_samples, self._microbatch_size
        return deal_microbatches(consumed_samples, batch, size, world_size, rank)

    def pad(self, consumed_samples: int, world_size: int, rank: int) -> tuple[Microbatch, ...]:
        """Return what a rank goes through besides its own, to do so as often as any other."""
        return _padding(
            [self.deal(consumed_samples, world_size, other) for other in range(world_size)], rank
        )

    def schedule(self, consumed_samples: int, world_size: int, rank: int) -> None:
        """Read ahead for this step and the next, as long as the world stays as it is."""
        following = consumed_samples + scale_step(self._job, world_size).num_samples
        starts = (consumed_samples, following)
        self._loader.schedule([m for start in starts for m in self.deal(start, world_size, rank)])

    def read(self, microbatch: Microbatch) -> Batch:
        """Return a microbatch; at once if it was scheduled."""
        batch = self._loader.get(microbatch)
        if self.on_read is not None:
            self.on_read(batch)
        return batch

    def read_padding(self, microbatch: Microbatch) -> Batch:
        """Return a microbatch that another rank computes."""
        return replace(self._loader.get(microbatch), is_padding=True)

    def validation_batches(
        self, world_size: int, rank: int, *, padded: bool = False
    ) -> Iterator[tuple[Microbatch, Batch]]:
        """Yield this rank's share of one pass over the validation data.

        Args:
            world_size: number of ranks.
            rank: this one.
            padded: yield as many as any other rank; what is no share of this one says so.

        Raises:
            ConfigError: the job has none.
        """
        if self._validation is None:
            raise ConfigError(
                "evaluate: got no validation data, expected some: set data.validation_url, or pack "
                "a corpus with a validation split"
            )
        size, num_samples = self._microbatch_size, self._num_validation_samples
        dealt = [
            deal_microbatches(0, num_samples, size, world_size, other)
            for other in range(world_size)
        ]
        for microbatch in dealt[rank]:
            yield microbatch, self._validation.get(microbatch)
        for microbatch in _padding(dealt, rank) if padded else ():
            yield microbatch, replace(self._validation.get(microbatch), is_padding=True)

    def close(self) -> None:
        """Stop reading ahead."""
        self._loader.close()
        if self._validation is not None:
            self._validation.close()


def _padding(dealt: Sequence[tuple[Microbatch, ...]], rank: int) -> tuple[Microbatch, ...]:
    """Return what a rank lacks of the number that the one with most has."""
    return dealt[0][:1] * (max(map(len, dealt)) - len(dealt[rank]))


def open_data_feed(job: JobConfig, args: BaseModel) -> DataFeed:
    """Open the datasets that ``job.data`` names.

    Raises:
        DataError: a corpus is missing or damaged, or there are fewer samples than a global batch.
    """
    dataset = open_dataset(job, args)
    count_training_samples(dataset, job)
    return DataFeed(job, dataset, _open_validation(job))


def open_dataset(job: JobConfig, args: BaseModel) -> MapDataset:
    """Open the training samples."""
    if job.data.dataset is not None:
        make = import_function(job.data.dataset, setting="data.dataset")
        return cast("MapDataset", make(args))  # the job's own code: it says so, nothing checks it
    assert job.data.url is not None, "the configuration requires one of url and dataset"
    return TokenCorpus.open(job.data.url)


def _open_validation(job: JobConfig) -> MapDataset | None:
    url = job.data.validation_url or job.data.url
    if url is None:
        return None
    corpus = TokenCorpus.open(url, split="validation")
    return corpus if len(corpus) else None
