"""Every error that TrainFlow raises on purpose.

    TrainFlowError
    ├── ConfigError (ValueError)       a setting the user can mend
    │   └── EntrypointError            the training function can't be imported, or has a wrong shape
    ├── DataError (ValueError)         a corpus or dataset the user can mend
    ├── CommunicationError             a collective or a process group failed
    │   └── GroupMismatchError         ranks disagree on what they are about to exchange
    ├── StateError                     training state can't be captured, moved or restored
    ├── CheckpointError                a checkpoint or its store is missing, damaged or refuses
    │   ├── CheckpointConflictError    another writer has committed that step
    │   ├── CheckpointMisfitError      it is whole, and of another training function
    │   ├── CheckpointVersionError     another release has written it, in another format
    │   └── StoreError                 the store doesn't answer, or has no room
    ├── TrainingError                  the user's training function, or the model, gave up
    │   └── TooManySkippedStepsError   non-finite gradients, step after step
    ├── HistoryError                   the history of jobs can't be read or written
    ├── TokenRefusedError              an access token is unknown, expired or revoked
    │   └── TokenScopeError            it is valid, and does not allow what is asked
    ├── GrafanaError                   Grafana refuses what was to be put there
    └── CoordinationError              the cluster can't do what was asked
        ├── CapacityError              not enough nodes, CPUs or GPUs
        ├── JobNotFoundError           no job of that id
        ├── UnreachableError           no Ray cluster, coordinator or server at that address
        └── ConflictError              the name, port or job is already taken

`StepAborted` (in `trainflow.computation.aborted`) is not in this tree: it is control flow, not an
error.
"""


class TrainFlowError(Exception):
    """Root of the tree. ``exit_code`` is what the command line leaves with."""

    exit_code = 1


class ConfigError(TrainFlowError, ValueError):
    """A configuration value is wrong: says what was got, what was expected and the setting."""

    exit_code = 2


class EntrypointError(ConfigError):
    """``entrypoint`` doesn't name an importable training function."""


class DataError(TrainFlowError, ValueError):
    """A corpus is missing, damaged, too small or of another kind than the job expects."""

    exit_code = 2


class CommunicationError(TrainFlowError):
    """A collective failed, or a process group could not be formed."""


class GroupMismatchError(CommunicationError):
    """Ranks of one epoch disagree on bucket layout, parameters or protocol version."""


class StateError(TrainFlowError):
    """Training state can't be captured, sent or restored."""


class CheckpointError(TrainFlowError):
    """A checkpoint is missing or damaged, or its store can't be reached or refuses."""


class StoreError(CheckpointError):
    """A store doesn't answer, refuses or has no room; what lies there may be quite in order."""


class CheckpointConflictError(CheckpointError):
    """Another writer has committed a checkpoint of that step."""


class CheckpointMisfitError(CheckpointError):
    """A checkpoint is whole, and of another training function than the one that is to go on."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint is of a version of the format that this release can't read; it may be whole."""


class TrainingError(TrainFlowError):
    """Training can't go on, whatever the cluster does."""


class TooManySkippedStepsError(TrainingError):
    """Gradients were not finite for ``training.max_skipped_steps`` steps in a row."""


class HistoryError(TrainFlowError):
    """The database of jobs doesn't answer, refuses, or was written by a newer release."""

    exit_code = 5


class TokenRefusedError(TrainFlowError):
    """An access token is unknown, expired or revoked."""

    exit_code = 4


class TokenScopeError(TokenRefusedError):
    """An access token is valid, and does not allow what is asked."""


class GrafanaError(TrainFlowError):
    """Grafana refuses something, for example since the token's role may not edit folders."""


class CoordinationError(TrainFlowError):
    """The cluster can't do what was asked."""


class CoordinatorGoneError(CoordinationError):
    """A run's coordinator has gone for good: it has told its result, or could not be made."""


class CapacityError(CoordinationError):
    """The cluster has fewer resources than the job's minimum."""

    exit_code = 8


class JobNotFoundError(CoordinationError):
    """No job of that id runs on the cluster, or is in the history."""

    exit_code = 3


class UnreachableError(CoordinationError):
    """No Ray cluster, or no coordinator, answers at that address."""

    exit_code = 5


class ConflictError(CoordinationError):
    """The job id, port, head or key is already in use, or the job's state does not allow it."""

    exit_code = 6
