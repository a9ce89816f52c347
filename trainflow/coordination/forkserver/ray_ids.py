"""Keep Ray from drawing identifiers before a process forks.

Ray's core draws those of tasks and objects by a generator whose state a fork inherits. So forks of
a process that has drawn any draw the same ones from then on, and an actor that is called twice by
one identifier at a time is ended by Ray. A class that is made an actor's draws one as its module is
imported, Ray's own among them.

Process: the server of forks.  Thread: main.  Blocks: never.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any


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
