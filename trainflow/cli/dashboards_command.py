"""``trainflow dashboards``: what Prometheus and Grafana show of runs, as files or in a Grafana.

Process: any.  Blocks: on the disk; until Grafana has answered.
"""

from pathlib import Path
from typing import Annotated

import typer

from trainflow.cli.output import say

dashboards_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Dashboards and alerts for Grafana and Prometheus.",
)


@dashboards_app.command()
def write(
    folder: Annotated[Path, typer.Argument(help="Where to; it is made if it is missing.")],
) -> None:
    """Write the dashboards and the rules of alerts as files.

    A file that is there already is replaced.
    """
    from trainflow.errors import ConfigError  # noqa: PLC0415
    from trainflow.monitoring.deployment_files import render_files  # noqa: PLC0415

    for name, content in render_files().items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"folder: got {folder}, where {path} can't be written ({error.strerror or error}), "
                "expected a folder that can be made and written; choose another one, or make room"
            ) from error
        say(str(path))


@dashboards_app.command()
def publish(
    url: Annotated[str, typer.Option(envvar="TRAINFLOW_GRAFANA_URL", help="Where Grafana is.")],
    token_file: Annotated[
        Path,
        typer.Option(
            envvar="TRAINFLOW_GRAFANA_TOKEN_FILE",
            help="File with the token of a service account that may edit.",
        ),
    ],
    folder: Annotated[str, typer.Option(help="Title of the folder there.")] = "TrainFlow",
    source: Annotated[
        str | None,
        typer.Option(help="Name or uid of the Prometheus that alerts ask; if there are several."),
    ] = None,
    alerts: Annotated[
        bool, typer.Option(help="Publish the alerts, too; not if Prometheus has them.")
    ] = True,
) -> None:
    """Put the dashboards and the alerts into a Grafana.

    Again, it changes what differs, and nothing else.
    """
    from trainflow.errors import ConfigError  # noqa: PLC0415
    from trainflow.monitoring.grafana.api import Grafana  # noqa: PLC0415
    from trainflow.monitoring.grafana.publishing import publish as publish_all  # noqa: PLC0415

    if source is not None and not alerts:
        raise ConfigError(
            f"--source: got {source} with --no-alerts, expected none: it is for alerts; leave one "
            "of the two out"
        )
    grafana = Grafana(url, _read_token(token_file))
    for each in publish_all(grafana, folder, source, has_alerts=alerts):
        say(f"{each.outcome.value:<10}{each.what}")


def _read_token(path: Path) -> str:
    from trainflow.errors import ConfigError  # noqa: PLC0415

    try:
        token = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise ConfigError(
            f"--token-file: got {path}, which can't be read ({type(error).__name__}), expected a "
            "file with a token; change --token-file"
        ) from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file: got {path}, which holds no token, expected one line; change "
            "--token-file"
        )
    return token
