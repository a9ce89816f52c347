"""What the command line leaves with. The errors of `trainflow.errors` carry the same numbers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended; ``meaning`` is for a person."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        """Make a member that is its number, and knows what it means."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    SUCCESS = 0, "success: of `run`, every step is done"
    FAILED = 1, "the job failed; the reason, with the rank's traceback, is on stderr"
    USAGE = 2, "wrong usage or configuration; nothing was started"
    NOT_FOUND = 3, "no such job on the cluster, or in the service's history"
    TOKEN_REFUSED = 4, "the service wants a token, or one that allows this"
    UNREACHABLE = 5, "no cluster, no coordinator, or no service answers"
    CONFLICT = 6, "something is there already, as another run's head; or the job's state forbids it"
    STOPPED = 7, "the run was stopped: by Ctrl-C, SIGTERM or `trainflow stop`"
    NO_CAPACITY = 8, "the cluster has no room for the job's workers.minimum"
    WAITED_TOO_LONG = 124, "what was waited for has not come in time; the job goes on"
    DETACHED = 130, "left: by a second Ctrl-C of `run` or `serve`, by one where a job is followed"


EPILOGUE = "\n".join(["\b", "Exit codes:", *(f"  {code:>3}  {code.meaning}" for code in ExitCode)])
"""Where a command's help says so; ``\\b`` has click keep the lines."""
