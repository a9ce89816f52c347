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
    children = psutil.Process(keeper_pid).children()
    return [each for each in children if any(SERVER_MODULE in word for word in each.cmdline())]
