"""One optimizer step, as the training function sees it.

Process: every rank.  Thread: training.
"""

from collections.abc import Iterator
from types import TracebackType

from torch import Tensor

from trainflow.computation.aborted import StepMode
from trainflow.computation.training_state import Committed
from trainflow.computation.transaction import Transaction
from trainflow.data.batch import Batch
from trainflow.errors import TrainingError


class Step:
    """A step to be computed and committed, inside ``with step:``.

    A step is a transaction. Until ``commit`` returns, nothing it did counts: if a rank dies, every
    rank abandons the step, and it comes again with the same samples. The code after ``commit`` runs
    at least once: after a failure the last committed step is presented once more, with no
    microbatches, and ``commit`` returns what it returned before.

    Attributes:
        number: from 1 to ``training.max_steps``.
        retry: how often this step was abandoned before.
        replayed: it was committed before, and only the code after ``commit`` is to run again.
    """

    def __init__(self, number: int, retry: int, mode: StepMode, transaction: Transaction):
        self.number = number
        self.retry = retry
        self.replayed = mode is StepMode.TAIL
        self._transaction = transaction
        self._committed: Committed | None = None

    def microbatches(self) -> Iterator[Batch]:
        """Yield this rank's share of the global batch, on the rank's device; may be none.

        Random numbers are seeded for each, by run, step and place in the global batch.

        Raises:
            StepAborted: the step is void.
        """
        return self._transaction.microbatches()

    def backward(self, mean_loss: Tensor, *, weight: float) -> None:
        """Compute gradients of one microbatch; those of the last leave as they are ready.

        Args:
            mean_loss: scalar; the mean over this microbatch's targets.
            weight: over how many targets (tokens, samples) that mean was taken; at least 0. The
                step's gradient is the mean over all targets of the global batch.

        Raises:
            StepAborted: the step is void.
            TrainingError: called twice for one microbatch; add the losses up and call it once.
        """
        self._transaction.backward(mean_loss, weight)

    def log(self, **scalars: Tensor | float) -> None:
        """Record values of this microbatch; a commit keeps their weighted mean over all ranks."""
        self._transaction.log(scalars)

    def commit(self) -> Committed:
        """Agree with all ranks that the step is whole, then apply it.

        Unscale, clip, optimizer, scheduler, zero gradients, ``on_commit`` callbacks: on every rank
        or on none. A gradient that isn't finite is skipped on all ranks alike.

        Raises:
            StepAborted: the step is void.
            TooManySkippedStepsError: too many steps in a row were skipped.
        """
        self._committed = self._transaction.commit()
        return self._committed

    def __enter__(self) -> "Step":
        self._transaction.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End the step. Takes what an abandoned step raised, and nothing else."""
        if kind is None and self._committed is None:
            raise TrainingError(
                f"step {self.number}: got to the end of `with step:` without commit(), expected "
                "one call of step.commit() in each step"
            )
        return self._transaction.leave(error)
