"""Whether a request is for this service, and from a page that may ask. Pure.

A web page can have a browser ask a service that listens on the reader's own machine: by making its
own name point there (DNS rebinding), or across origins. An address in digits can't be rebound.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from trainflow.service.problems import ProblemError, ProblemType


def check_host(host: str | None, allowed: Collection[str]) -> None:
    """Refuse a request that names another host than this service.

    Args:
        host: the Host header.
        allowed: names of the service besides localhost.

    Raises:
        ProblemError: HOST_REFUSED.
    """
    name, known = _name_in(host), {each.lower() for each in allowed}
    if name is None or not (name == "localhost" or _is_address(name) or name in known):
        raise ProblemError(
            ProblemType.HOST_REFUSED,
            f"Host: got {'none' if host is None else repr(host)}, expected localhost, an address "
            "in digits, or one of http.allowed_hosts; add it there if the service is called so",
        )


def check_origin(origin: str | None, host: str | None, allowed: Collection[str]) -> None:
    """Refuse a request that a web page of another origin has made.

    Args:
        origin: the Origin header; None of a request that no page made.
        host: the Host header.
        allowed: origins besides the service's own.

    Raises:
        ProblemError: ORIGIN_REFUSED.
    """
    if origin is None or origin in allowed:
        return
    if origin.lower() not in {f"{scheme}://{host or ''}".lower() for scheme in ("http", "https")}:
        raise ProblemError(
            ProblemType.ORIGIN_REFUSED,
            f"Origin: got {origin!r}, expected the service's own, or one of http.allowed_origins; "
            "add it there if its pages may ask",
        )


def _name_in(host: str | None) -> str | None:
    """Return the name in a Host header, without its port; None if it is none."""
    if not host or any(character in host for character in "/@?#\\ "):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
