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
from contextlib import contextmanager
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


def do_forks_draw_alike() -> bool:
    """Return whether two forks of this process draw the same identifiers, or none."""
    ray: Any = import_module("ray")
    first, second = (_run_in_fork(lambda: ray.WorkerID.from_random().binary()) for _ in range(2))
    return first == second


def _run_in_fork(draw: Callable[[], bytes]) -> bytes:
    """Return what a fork draws; nothing if it can't, or doesn't end."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(_ENDS_WITHIN_S)
            os.write(writable, draw())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(pid, 0)
    return drawn
