"""Import what every worker imports, then become a worker as often as one is asked for.

A fork begins where its launcher would have, with the same arguments, variables, streams and
working directory; all that it has besides are modules. Whatever would make it another process than
Python would have started is a reason to have none: other variables than at import, threads, a GPU
that was touched.

Process: one of its own, a child of the node's Keeper, with which it dies; and its forks.
Thread: main; libraries' threads see to forks themselves.  Blocks: until somebody asks.
"""

import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
from typing import Any

from trainflow.checkpointing.bound_process import bind_to
from trainflow.coordination.forkserver.imports import Imports, import_all
from trainflow.coordination.forkserver.launcher import (
    GO,
    READY,
    REFUSED,
    Request,
    is_own,
    receive_request,
)
from trainflow.coordination.forkserver.surroundings import apply_changes, find_difference
from trainflow.coordination.forkserver.tickets import UsedTickets

logger = logging.getLogger(__name__)

_SAY_WITHIN_S = 5.0
_GO_WITHIN_S = 60.0  # who says it has nothing else to do: Ray waits for as long
_NICENESS = "RAY_worker_niceness"


class Forking:
    """Forks this process for whoever asks at a listener."""

    def __init__(
        self,
        listener: socket.socket,
        tickets: UsedTickets,
        imports: Imports,
        niceness: int | None,
    ):
        """Take what forks need to know.

        Args:
            listener: where they are asked for.
            tickets: which were used before.
            imports: what they have.
            niceness: that they begin with, before Ray adds to it; None: this process', and Ray is
                to add nothing.
        """
        self._listener = listener
        self._tickets = tickets
        self._imports = imports
        self._niceness = niceness

    def wait(self) -> Request:
        """Fork whenever that is asked for; returns in a fork alone, with what it is to be."""
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_SAY_WITHIN_S)
                request = _take_request(connection)
                if request is not None and self._answer(request, connection):
                    return request

    def _answer(self, request: Request, connection: socket.socket) -> bool:
        """Fork, or decline; returns twice: True in the fork, False in the server."""
        try:
            reason = self._take_ticket(request.ticket) or self._decline(request)
            if not reason and os.fork() == 0:
                self._begin(request, connection)
                return True
        except OSError as error:  # too many processes, or too little memory
            reason = str(error)
        finally:
            for each in request.streams:
                os.close(each)
        if reason:
            _refuse(connection, reason)
        return False

    def _take_ticket(self, ticket: str) -> str:
        """Use a ticket, which is for one fork or none; returns why it isn't good; empty: it is."""
        if not ticket:
            return "nothing was to be forked"
        if ticket in self._tickets:
            return "it was started by a worker, or another time"
        self._tickets.add(ticket)
        return ""

    def _decline(self, request: Request) -> str:
        """Return why a fork can't be what is asked for; empty: it can."""
        name = find_difference(self._imports.environment, request.environment)
        if name is not None:
            reason = f"the variable {name} is another than where it was imported"
            logger.warning("no fork: %s", reason)
            return reason
        return ""

    def _begin(self, request: Request, connection: socket.socket) -> None:
        """In a fork: be what is asked for, if the launcher leaves the rest to it."""
        try:
            self._listener.close()
            self._tickets.close()
            self._become(request)
            connection.settimeout(_GO_WITHIN_S)
            connection.sendall(READY)
            if connection.recv(1) != GO:  # it may have given up, and become a worker itself
                os._exit(1)
        except OSError:
            logger.exception("a fork ends before it was a worker")
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)

    def _become(self, request: Request) -> None:
        """Be what the launcher's process was."""
        os.setpgid(0, 0)  # Ray ends a worker with its group
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(request.streams):
            os.dup2(stream, number)
        environment = apply_changes(request.environment, self._imports.changes)
        os.environ.clear()
        os.environ.update(environment)
        if self._niceness is None:
            os.environ[_NICENESS] = "0"
        else:
            os.setpriority(os.PRIO_PROCESS, 0, self._niceness)
        os.chdir(request.directory)
        sys.argv[:] = request.argv
        sys.path[:] = self._imports.path_of(request.argv[0])
        importlib.invalidate_caches()  # of places that weren't there yet
        _reseed()


def _take_request(connection: socket.socket) -> Request | None:
    """Return what is asked for; None if that isn't said, or not by this process' user."""
    try:
        return receive_request(connection) if is_own(connection) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        logger.exception("no request for a fork was had")
        return None


def _refuse(connection: socket.socket, reason: str) -> None:
    """Say why there is no fork."""
    try:
        connection.sendall(REFUSED + reason.encode())
    except OSError:
        logger.exception("nobody hears why there is no fork: %s", reason)


def _reseed() -> None:
    """Have forks draw different numbers; Python's own generator sees to that itself.

    Those of GPUs come to be only as a fork uses them.
    """
    numpy: Any = importlib.import_module("numpy")
    numpy.random.seed()
    torch: Any = importlib.import_module("torch")
    torch.default_generator.seed()


def find_niceness() -> int | None:
    """Return the niceness that Ray gives its processes at first; each adds to it as it connects.

    The Keeper has done so already. Returns None where that can't be taken back.
    """
    raylet = os.environ.get("RAY_RAYLET_PID")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        wanted = own if raylet is None else os.getpriority(os.PRIO_PROCESS, int(raylet))
        os.setpriority(os.PRIO_PROCESS, 0, wanted)
        os.setpriority(os.PRIO_PROCESS, 0, own)
    except OSError:
        return None
    return wanted


def main() -> None:
    """Serve forks, by ``PARENT LISTENER TICKETS READINESS SETTINGS``; in a fork, run what is asked.

    All but the first and the last are file descriptors; once all is imported, why nothing can be
    forked is written to ``READINESS``, or an empty line. ``SETTINGS`` are `import_all`'s arguments
    as JSON.
    """
    parent, listener_fd, tickets_fd, readiness_fd, settings = sys.argv[1:6]
    if not bind_to(int(parent)):
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    environment = dict(os.environ)
    niceness = find_niceness()
    imports = import_all(environment, **json.loads(settings))
    sys.stdout.flush()  # else each fork would print again what modules have printed
    with os.fdopen(int(readiness_fd), "w", encoding="utf-8") as readiness:
        readiness.write(f"{imports.unfit}\n")
    if imports.unfit:
        return
    gc.freeze()  # so that collections in forks touch no page that they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end are nobody's to wait for
    listener, tickets = socket.socket(fileno=int(listener_fd)), UsedTickets(int(tickets_fd))
    request = Forking(listener, tickets, imports, niceness).wait()
    runpy.run_path(request.argv[0], run_name="__main__")
