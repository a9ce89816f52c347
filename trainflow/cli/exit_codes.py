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
    NOT_FOUND = 3, "no such run on the cluster"
    TOKEN_REFUSED = 4, "the service refuses the access token, or it does not allow this"
    UNREACHABLE = 5, "no cluster, or no coordinator, answers"
    CONFLICT = 6, "something is already there: a head of another run"
    STOPPED = 7, "the run was stopped: by Ctrl-C, SIGTERM or `trainflow stop`"
    NO_CAPACITY = 8, "the cluster has no room for the job's workers.minimum"
    DETACHED = 130, "left at once by a second Ctrl-C"


EPILOGUE = "\n".join(["\b", "Exit codes:", *(f"  {code:>3}  {code.meaning}" for code in ExitCode)])
"""Where a command's help says so; ``\\b`` has click keep the lines."""
