"""What middleware reads of an ASGI request. Pure."""

from starlette.types import Scope


def read_header(scope: Scope, name: bytes) -> str | None:
    """Return a header of a request, by its lower-case name; None if there is none.

    Of several of one name all are returned, with commas between: for Host and Authorization that
    is none that passes.
    """
    found = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(found) if found else None


def read_peer(scope: Scope) -> str | None:
    """Return the address that a request came from; None if it isn't known."""
    client = scope.get("client")
    return None if client is None else str(client[0])
