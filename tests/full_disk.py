import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def room_for(num_bytes: int) -> Generator[None]:
    """Let no file of this process grow beyond ``num_bytes``, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
