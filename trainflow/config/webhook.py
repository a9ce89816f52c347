"""Who is told of events by HTTP: the sections ``monitoring.webhook`` and ``monitoring.grafana``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, model_validator

from trainflow.config.section import PositiveFloat, Section

Topic = Literal["failures", "recoveries", "anomalies", "checkpoints", "capacity", "slowness", "end"]

KINDS: Mapping[Topic, frozenset[str]] = {
    "failures": frozenset(
        {"failure", "hang", "deadlock", "ranks_differ", "isolate", "forming_fails"}
        | {"data_stall", "data_stall_last", "data_stall_over", "waited_for"}
        | {"lease_ended", "link_cut", "link_cut_over"}
        | {"detector_off", "detector_on", "monitoring_failed"}
    ),
    "recoveries": frozenset({"recovered", "coordinator_restarted"}),
    "anomalies": frozenset(
        {"anomaly", "anomaly_over", "step_skipped"}
        | {"rewind", "rewound", "rewind_refused", "rewind_given_up"}
    ),
    "checkpoints": frozenset(
        {"checkpoint_failed", "checkpoint_skipped", "checkpoint_quarantined", "copies_short"}
    ),
    "capacity": frozenset(
        {"waiting", "reduced", "drain", "drained", "drain_late", "readmit"}
        | {"nowhere_to_go", "node_unheard", "node_heard"}
    ),
    "slowness": frozenset({"straggler", "straggler_over", "slow_network", "slow_network_over"}),
    "end": frozenset({"ended"}),
}
"""Which kinds of events belong to each topic."""

_DEFAULT: tuple[Topic, ...] = ("failures", "anomalies", "end")


def check_webhook_url(url: str) -> str:
    """Return an address that can be asked.

    Raises:
        ValueError: it is none, or has a password in it.
    """
    parts = _split(url)
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address such as https://alerts.example.org/trainflow")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("an address without spaces and letters beyond ASCII: escape them, as %20")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "an address without a name and a password, which would be kept with every record; "
            "put a token into a file and name it by monitoring.webhook.token_file"
        )
    return url


def check_grafana_url(url: str) -> str:
    """Return where a Grafana is, to which paths of its API can be added.

    Raises:
        ValueError: it is no address, has a password in it, or something after its path.
    """
    parts = urlsplit(check_webhook_url(url))
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError(
            "an address such as https://grafana.example.org/prefix, without what begins with ? or "
            "#: paths of its API are added to it; leave that out"
        )
    return url


def _split(url: str) -> SplitResult | None:
    """Return the parts of an address; None if it can't be read, or its port is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if port == 0 else parts


def _check_file(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError("an absolute path, as /run/secrets/token: the coordinator reads it")
    return path


SecretFile = Annotated[str, AfterValidator(_check_file)]


class WebhookConfig(Section):
    """Where events are posted as JSON. What can't be is counted and told; training never waits."""

    url: Annotated[str, AfterValidator(check_webhook_url)] | None = None
    """Address that is posted to. It is kept with the run's record: one that is a secret by itself
    belongs in ``url_file``."""

    url_file: SecretFile | None = None
    """File, on the machine where the coordinator runs, that holds the address, instead of
    ``url``."""

    token_file: SecretFile | None = None
    """File there that holds a bearer token; read each time, so that it may be replaced."""

    topics: list[Topic] = Field(default_factory=lambda: [*_DEFAULT], min_length=1)
    """What is told of; docs/monitoring.md says which events these are."""

    timeout_s: Annotated[PositiveFloat, Field(le=60)] = 10.0
    """Seconds for which nothing may be heard of an answer."""

    @model_validator(mode="after")
    def _require_one_address(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("exactly one of url and url_file")
        return self

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of events that are told of."""
        return frozenset[str]().union(*(KINDS[topic] for topic in self.topics))


class GrafanaConfig(Section):
    """Where failures and recoveries are marked, so that they stand on every curve."""

    url: Annotated[str, AfterValidator(check_grafana_url)]
    """Where Grafana is, with the prefix of its path if it has one."""

    token_file: SecretFile
    """File, on the machine where the coordinator runs, that holds the token of a service account
    which may make annotations; read each time."""

    def as_webhook(self) -> WebhookConfig:
        """Return where annotations are posted."""
        return WebhookConfig(
            url=f"{self.url.rstrip('/')}/api/annotations", token_file=self.token_file
        )
