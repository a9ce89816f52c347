"""Refuse a TRAINFLOW_HOME that nothing can be kept in, before anything starts.

Process: driver.  Blocks: on the local disk.
"""

import tempfile

from trainflow.coordination import names
from trainflow.errors import ConfigError


def require_home() -> None:
    """Make the folder that runs are recorded in, and make sure that files can be made there.

    Raises:
        ConfigError: it can't be made, or nothing can be made in it.
    """
    runs = names.home() / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=runs).close()
    except OSError as error:
        raise refuse_home(error) from error


def refuse_home(error: OSError) -> ConfigError:
    """Return the error to be raised where the home can't be used."""
    return ConfigError(
        f"TRAINFLOW_HOME: got {names.home()} ({error.strerror or error}); expected a folder that "
        "can be made, read and written; mend it, or set TRAINFLOW_HOME to another one"
    )
