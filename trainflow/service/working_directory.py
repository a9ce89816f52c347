"""Keep jobs' working directories where they are allowed to be.

Process: a replica of the service, on the cluster's head.  Blocks: on looking the folder up.
"""

from collections.abc import Sequence
from pathlib import Path

from trainflow.service.problems import ProblemError, ProblemType


def contain(directory: str, roots: Sequence[str]) -> Path:
    """Return a working directory as the real folder that it is, links resolved.

    Whoever may change files under a root may put a link there after this look: it keeps honest
    requests in, and is no sandbox. A job runs any code it likes.

    Raises:
        ProblemError: DIRECTORY_REFUSED: it is not a folder in one of ``roots``. Outside of them
            the answer is the same for what exists and what doesn't.
    """
    try:
        found = Path(directory).resolve(strict=True)
        if _is_written_plainly(directory) and found.is_dir() and _is_in(found, roots):
            return found
    except (OSError, ValueError, RuntimeError):
        pass  # it isn't there, or can't be: told below
    raise ProblemError(
        ProblemType.DIRECTORY_REFUSED,
        f"working_directory: got {directory[:200]!r}, expected the absolute path, without .., of "
        f"a folder in one of the service's roots ({', '.join(roots) or 'none'}); choose one there, "
        "or add its folder to roots",
    )


def _is_written_plainly(directory: str) -> bool:
    path = Path(directory)
    return path.is_absolute() and ".." not in path.parts


def _is_in(folder: Path, roots: Sequence[str]) -> bool:
    return any(folder.is_relative_to(Path(root).resolve()) for root in roots)
