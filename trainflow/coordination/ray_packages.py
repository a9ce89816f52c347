"""What Ray has made of the folder that a job was submitted from.

Process: driver.  Thread: main.  Blocks: on Ray's store.
"""

from ray.exceptions import RayError
from ray.experimental.internal_kv import (
    _internal_kv_get,  # pyright: ignore[reportPrivateUsage]  Ray has no other way to a package
)

from trainflow.errors import CoordinationError


def fetch_package(uri: str) -> bytes:
    """Return a package that the connected cluster holds.

    Args:
        uri: as a runtime environment names it, ``gcs://...``.

    Raises:
        CoordinationError: the cluster doesn't have it, or doesn't answer.
    """
    try:
        found = _internal_kv_get(uri)
    except RayError as error:
        raise CoordinationError(f"{uri}: got no answer from Ray's store ({error})") from error
    if not found:
        raise CoordinationError(f"{uri}: got nothing of that name in Ray's store, expected it")
    return found
