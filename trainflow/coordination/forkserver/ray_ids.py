"""Keep Ray from drawing identifiers before a process forks.

Ray's core draws those of tasks and objects by a generator whose state a fork inherits. So forks of
a process that has drawn any draw the same ones from then on, and an actor that is called twice by
one identifier at a time is ended by Ray. A class that is made an actor's draws one as its module is
imported, Ray's own among them.

Process: the server of forks.  Thread: main.  Blocks: for two short forks, to find out.
"""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_ENDS_WITHIN_S = 10


@contextmanager
def drawn_elsewhere() -> Generator[None]:
    """Have identifiers of actors' classes come from the system meanwhile; imports Ray."""
    actor: Any = import_module("ray.actor")
    genuine = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: genuine(os.urandom(genuine.size())))
    try:
        yield
    finally:
        actor.ActorClassID = genuine


def find_alike() -> str:
    """Return why two forks of this process would draw the same identifiers; empty: they don't."""
    ray: Any = import_module("ray")
    first, second = (_run_in_fork(lambda: ray.WorkerID.from_random().binary()) for _ in range(2))
    if not (first and second):
        return "a fork to try it with has ended before it had drawn one of Ray's identifiers"
    return "what was imported has drawn Ray's identifiers" if first == second else ""


def _run_in_fork(draw: Callable[[], bytes]) -> bytes:
    """Return what a fork draws; nothing if it can't, or doesn't end."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_ENDS_WITHIN_S)
            os.write(writable, draw())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        drawn = pipe.read()
    with suppress(ChildProcessError):  # a module has had children that end waited for by nobody
        os.waitpid(pid, 0)
    return drawn
