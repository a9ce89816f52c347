"""Where a command about jobs goes: to the service, or to the cluster. Decided here alone.

Process: driver.  Pure, but for reading the file of the token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trainflow.errors import ConfigError

SERVER = "TRAINFLOW_SERVER"
TOKEN_FILE = "TRAINFLOW_TOKEN_FILE"
ADDRESSES = ("TRAINFLOW_ADDRESS", "RAY_ADDRESS")
OWN_SERVER = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ClusterPlace:
    """A Ray cluster.

    Attributes:
        address: of it; None: the head that `trainflow run` has started on this machine.
    """

    address: str | None


@dataclass(frozen=True)
class ServicePlace:
    """The service.

    Attributes:
        url: of it.
        is_given: the command line, not the environment, says so: commands that come next must too.
    """

    url: str
    is_given: bool

    def option(self) -> str:
        """Return what a further command needs to come here too."""
        return f" --server {self.url}" if self.is_given else ""


def choose_place(
    server: str | None, address: str | None, env: Mapping[str, str]
) -> ServicePlace | ClusterPlace:
    """Return where a command goes that the service and a cluster both can answer.

    An option counts more than any variable, and TRAINFLOW_SERVER more than a cluster's address.

    Args:
        server: the option --server.
        address: the option --address.
        env: the environment.

    Raises:
        ConfigError: both options are given, or the service's URL is none.
    """
    if server is not None and address is not None:
        raise ConfigError(
            f"--server: got {server} beside --address {address}, expected one of them; name the "
            "service, or the cluster"
        )
    if address is None and (server is not None or env.get(SERVER)):
        return find_service(server, env)
    named = [env[name] for name in ADDRESSES if env.get(name)]
    return ClusterPlace(address or next(iter(named), None))


def find_service(server: str | None, env: Mapping[str, str]) -> ServicePlace:
    """Return the service: that of the option, else of TRAINFLOW_SERVER, else this machine's.

    Raises:
        ConfigError: its URL is none.
    """
    url = server or env.get(SERVER) or OWN_SERVER
    if not _is_url(url):
        source = "--server" if server else SERVER
        raise ConfigError(
            f"{source}: got {url!r}, expected a URL as {OWN_SERVER}; write it with http:// or "
            "https://, and a host, or name a Ray cluster with --address instead"
        )
    return ServicePlace(url, is_given=not env.get(SERVER) or server is not None)


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        has_place = bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none
        return False
    return url.scheme in {"http", "https"} and has_place and len(text.split()) == 1


def read_token(env: Mapping[str, str]) -> str | None:
    """Return the token in the file that TRAINFLOW_TOKEN_FILE names; None if it names none.

    Raises:
        ConfigError: it can't be read, or holds no token.
    """
    name = env.get(TOKEN_FILE)
    if not name:
        return None
    try:
        token = Path(name).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no plain text"
        raise _refuse_token(f"{name} ({reason})") from error
    if not token or len(token.split()) > 1:
        raise _refuse_token(f"{name}, which is empty or has several words")
    return token


def _refuse_token(got: str) -> ConfigError:
    return ConfigError(
        f"{TOKEN_FILE}: got {got}, expected a file with one token; make one with `trainflow token "
        "create NAME --to FILE`"
    )
