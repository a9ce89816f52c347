"""What the service's own settings are: where it listens, who may ask, and how much of it.

They stand in a file of their own (``TRAINFLOW_HOME/service.yaml``), read like a job's: every key
known, every value bounded, every contradiction refused at start.

Process: any.  Pure, but for `load_settings`, which reads one local file.
"""

import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from trainflow.config.checking import check_settings
from trainflow.config.problems import Problem, conflicts_context, show, summarize
from trainflow.config.section import PositiveFloat, Section
from trainflow.config.sources import Override, read_environment, read_file, read_options
from trainflow.coordination import names

_PREFIX = "TRAINFLOW_SERVICE__"
_DATABASE = "TRAINFLOW_DATABASE_URL"
_MIB = 1024 * 1024


class HttpSettings(Section):
    """Where the service listens, and by which names it is called."""

    host: str = "127.0.0.1"
    """Address to listen at; 127.0.0.1 is reached from this machine alone."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen at."""

    allowed_hosts: list[str] = Field(default_factory=list[str])
    """Names by which clients call the service, besides localhost and addresses in digits. Another
    name in a request is refused: a web page could have made it point here (DNS rebinding)."""

    allowed_origins: list[str] = Field(default_factory=list[str])
    """Origins, as https://host:port, whose web pages may ask, besides the service's own."""

    certificate: str | None = None
    """File with the TLS certificate, PEM, by its path from / on; null: plain HTTP."""

    key: str | None = None
    """File with the private key of ``certificate``, PEM."""


class LimitSettings(Section):
    """How much one client may ask for. Each replica counts for itself."""

    body_bytes: Annotated[int, Field(ge=1024, le=64 * _MIB)] = _MIB
    """Largest body of a request."""

    body_within_s: PositiveFloat = 30.0
    """Seconds within which a request's whole body must come; a slower one is refused."""

    requests_per_s: PositiveFloat = 50.0
    """Requests a second of one token, or of one address where there are no tokens."""

    burst: PositiveInt = 200
    """Requests at once, before ``requests_per_s`` counts."""

    refusals_per_minute: PositiveInt = 30
    """Refused tokens a minute from one address; beyond, only those are looked at that were let in
    before: clients behind a proxy share an address. Requests without any token have the same bound,
    counted by themselves."""

    streams: PositiveInt = 2000
    """Streams of events and logs at once; one more is refused."""

    stream_bytes: Annotated[int, Field(ge=64 * 1024)] = 4 * _MIB
    """Bytes after which a stream ends, to be taken up where it ended: what a proxy may have to
    hold of a stream that its client doesn't read."""

    stalled_s: PositiveFloat = 30.0
    """Seconds for which a stream's client may take nothing before it is dropped. Any connection is
    broken off whose client takes nothing of an answer for two to three times as long."""

    heartbeat_s: PositiveFloat = 15.0
    """Seconds of silence after which a stream of events sends a comment. One that follows a log has
    none to send: it ends after three times as long, to be taken up where it ended."""

    page: Annotated[int, Field(ge=1, le=1000)] = 100
    """Entries of a page where a request doesn't say; one that does gets 1000 at most."""


class HistorySettings(Section):
    """Where jobs are remembered."""

    url: str | None = None
    """Database, as sqlite:////path/history.db or postgresql://user@host/name; null:
    TRAINFLOW_HOME/history.db. TRAINFLOW_DATABASE_URL sets it too."""

    poll_every_s: PositiveFloat = 0.5
    """Seconds between two looks for news in jobs' records, and in the database for whoever waits.
    """


class ServiceSettings(Section):
    """The service's settings."""

    schema_version: Literal[1] = 1
    """Version of this file's form."""

    http: HttpSettings = HttpSettings()
    """Where it listens."""

    authentication: Literal["tokens", "off"] = "tokens"
    """Who may ask: bearers of tokens (``trainflow token create``), or off: everybody on this
    machine, which allows no other ``http.host`` than a loopback address."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 2
    """Processes that answer."""

    roots: list[str] = Field(default_factory=list[str])
    """Folders in which working directories of submitted jobs may lie; none: jobs have no working
    directory, and train what is installed."""

    limits: LimitSettings = LimitSettings()
    """How much one client may ask for."""

    history: HistorySettings = HistorySettings()
    """Where jobs are remembered."""

    @model_validator(mode="after")
    def _check_contradictions(self) -> Self:
        problems = [*_find_contradictions(self)]
        if problems:
            raise PydanticCustomError(
                "conflict", "{text}", conflicts_context(problems) | {"text": summarize(problems)}
            )
        return self

    @property
    def needs_tokens(self) -> bool:
        """Whether a request without a token is refused."""
        return self.authentication == "tokens"


def _find_contradictions(settings: ServiceSettings) -> Sequence[Problem]:
    http, found = settings.http, list[Problem]()
    if not settings.needs_tokens and not is_loopback(http.host):
        found.append(
            Problem(
                "authentication",
                f"'off' with http.host {show(http.host)}",
                "tokens, or a loopback address as http.host",
                "set authentication to tokens, or http.host to 127.0.0.1: others could run code",
            )
        )
    if (http.certificate is None) != (http.key is None):
        given = "http.key" if http.certificate is None else "http.certificate"
        found.append(
            Problem(given, "one of certificate and key", "both or none", "add the other one")
        )
    paths = {f"roots.{number}": root for number, root in enumerate(settings.roots)}
    files = {"http.certificate": http.certificate, "http.key": http.key}
    paths |= {name: path for name, path in files.items() if path is not None}
    found += [
        Problem(name, show(path), "an absolute path", "write it from / on")
        for name, path in paths.items()
        if not os.path.isabs(path)  # noqa: PTH117  of whatever text
    ]
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at ``host``."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def locate_settings() -> Path:
    """Return where the settings are looked for if no file is named."""
    return names.home() / "service.yaml"


def load_settings(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
) -> ServiceSettings:
    """Read the settings: the file, over it the environment, over that the options.

    Args:
        path: a YAML or TOML file; if None the one of `locate_settings`, if it is there.
        overrides: options such as ``http.port=8001``.
        env: ``TRAINFLOW_SERVICE__HTTP__PORT`` sets ``http.port``.

    Raises:
        SettingsError: with every problem found.
    """
    chosen = path or locate_settings()
    content = read_file(chosen) if path is not None or chosen.exists() else {}
    changes = [
        *_read_database(env),
        *read_environment(env, ServiceSettings, _PREFIX),
        *read_options(overrides),
    ]
    return check_settings(ServiceSettings, content, changes, source=str(chosen))


def _read_database(env: Mapping[str, str]) -> list[Override]:
    url = env.get(_DATABASE)
    return [Override(("history", "url"), url, _DATABASE)] if url else []
