"""``trainflow serve``: the HTTP service on a cluster, or on a head of this machine's own.

Process: driver.  Thread: main.  Blocks: until it is asked to end.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainflow.cli.history_watch import HistoryWatch, asking
from trainflow.cli.job_options import Overrides
from trainflow.cli.output import say
from trainflow.cli.serving_cluster import Head, HeadWatch, ServingCluster
from trainflow.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from trainflow.service.settings import ServiceSettings

_LOOK_EVERY_S = 0.25
_OPEN = (
    "the cluster at {} takes whoever reaches it from other machines, without a token of Ray's: "
    "they can run code there, whatever tokens the service wants"
)
_REPLACED = (
    "a service was there, which this one has replaced: its port and its settings hold no more, "
    "authentication among them"
)

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="SERVICE.yaml",
        help="The service's settings; else TRAINFLOW_HOME/service.yaml, if it is there.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar=["TRAINFLOW_ADDRESS", "RAY_ADDRESS"],
        help="The Ray cluster to serve on; without it, a head of this machine's own.",
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="CPUs that this machine's own head declares; its cores if not given. With 0 it has "
        "room only for workers that reserve none.",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="With an address: leave once the service answers.")
]


def serve(
    config: SettingsFile = None,
    overrides: Overrides = None,
    address: Address = None,
    cpus: Cpus = None,
    detach: Detach = False,
) -> None:
    """Serve jobs over HTTP: submit, follow, stop, resume, and what became of them.

    Ctrl-C and SIGTERM end the service, also before it answers; a second one leaves at once. Jobs on
    a cluster that was named go on; a head of this machine's own ends with the service, and with it
    the jobs on it.
    """
    from trainflow.cli.home import require_home  # noqa: PLC0415
    from trainflow.service.settings import load_settings  # noqa: PLC0415

    settings = load_settings(config, overrides or [])
    require_home()
    _require_sense(address, cpus, detach=detach)
    announce_access(settings)
    raise typer.Exit(_serve(settings, address, cpus, detach=detach))


def _require_sense(address: str | None, cpus: int | None, *, detach: bool) -> None:
    from trainflow.errors import ConfigError  # noqa: PLC0415

    if address is None and detach:
        raise ConfigError(
            "--detach: got it without an address, expected a cluster that outlives this command; "
            "add --address, or leave --detach out"
        )
    if address is not None and cpus is not None:
        raise ConfigError(
            f"--cpus: got {cpus} with the cluster at {address}, expected none: its nodes have "
            "declared theirs; leave --cpus out"
        )


def announce_access(settings: "ServiceSettings") -> None:
    """Say who may ask: everybody on this machine, or bearers of tokens, if there are any.

    Raises:
        HistoryError: the database doesn't answer.
        ConfigError: its URL is none.
    """
    from trainflow.service.history.history import open_history  # noqa: PLC0415

    with open_history(settings.history.url) as history:
        now_s = SYSTEM_CLOCK.unix_s()
        tokens = [
            token
            for token in history.tokens.list()
            if token.revoked_at_s is None
            and (token.expires_at_s is None or token.expires_at_s > now_s)
        ]
    if not settings.needs_tokens:
        say(
            "authentication is off: everybody on this machine may submit jobs, and so run code as "
            "you; set authentication to tokens to change that",
            err=True,
        )
    elif not tokens:
        say("there is no token yet; make one with: trainflow token create NAME", err=True)


def _serve(
    settings: "ServiceSettings", address: str | None, cpus: int | None, *, detach: bool
) -> int:
    from trainflow.cli.exit_codes import ExitCode  # noqa: PLC0415
    from trainflow.cli.head import refuse_second_head  # noqa: PLC0415
    from trainflow.cli.stop_signals import StopSignals, ending_in_order  # noqa: PLC0415
    from trainflow.service.http_server import (  # noqa: PLC0415
        require_certificate,
        require_free_port,
    )

    require_certificate(settings.http)
    if address is None:
        refuse_second_head()  # what an earlier service has left holds its port, too
    require_free_port(settings.http)
    with ending_in_order(), StopSignals() as signals, _reach(address, cpus) as cluster:
        signals.second_interrupts = True
        head = cluster.deploy(settings, lambda: signals.received > 0)
        if head is not None:
            _announce(head, settings, is_own=address is None)
            if detach:
                return ExitCode.SUCCESS
            looks = [HistoryWatch(asking(find_url(settings)), SYSTEM_CLOCK).look]
            if address is not None:  # the service may be on another machine
                cluster.require, looks = HeadWatch(head.address, SYSTEM_CLOCK).require, []
            looks.append(cluster.require)
            wait_until_asked(lambda: signals.received > 0, looks, SYSTEM_CLOCK)
        say("ending the service; what it answers has some seconds")
        if head is not None or address is not None:  # an own head ends anyway
            cluster.undeploy()
    return ExitCode.SUCCESS


def _announce(head: Head, settings: "ServiceSettings", *, is_own: bool) -> None:
    if head.is_open:
        say(_OPEN.format(head.address), err=True)
    if head.has_replaced:
        say(_REPLACED, err=True)
    if is_own and head.dashboard:
        say(f"`ray job submit` finds its head with --address http://{head.dashboard}")
    say(f"serving at {find_url(settings)}")


def find_url(settings: "ServiceSettings") -> str:
    """Return where the service is reached."""
    http = settings.http
    scheme = "http" if http.certificate is None else "https"
    host = f"[{http.host}]" if ":" in http.host else http.host
    return f"{scheme}://{host}:{http.port}"


def wait_until_asked(
    is_asked: Callable[[], bool], looks: Sequence[Callable[[], None]], clock: Clock
) -> None:
    """Wait until somebody asks for the end, or a look raises, as where the cluster is gone."""
    while not is_asked():
        for look in looks:
            look()
        clock.sleep(_LOOK_EVERY_S)


@contextmanager
def _reach(address: str | None, cpus: int | None) -> Generator[ServingCluster]:
    """Give the cluster that was named, or start one, which ends with the context."""
    if address is not None:
        yield ServingCluster(address)
        return
    from trainflow.cli.head import require_whole, serving_head  # noqa: PLC0415

    say("starting a head on this machine; it ends with the service, and jobs with it")
    with serving_head((os.cpu_count() or 1) if cpus is None else cpus) as own:
        yield ServingCluster(own.address, lambda: require_whole(own))
        say("ending the head, and jobs on it; what hasn't ended after some seconds is killed")
