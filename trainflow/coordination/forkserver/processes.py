"""Which processes are servers of forks.

Process: any.  Blocks: never.
"""

import psutil

SERVER_MODULE = "trainflow.coordination.forkserver.server"


def find_servers(keeper_pid: int) -> list[psutil.Process]:
    """Return the servers of forks that a Keeper runs; one, or none.

    Their forks are none: they are children of the server.

    Raises:
        psutil.Error: the Keeper is gone.
    """
    return [each for each in psutil.Process(keeper_pid).children() if _is_server(each)]


def _is_server(child: psutil.Process) -> bool:
    try:
        return any(SERVER_MODULE in word for word in child.cmdline())
    except psutil.NoSuchProcess:  # it has ended, which the Keeper may not have seen yet
        return False
