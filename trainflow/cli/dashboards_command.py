"""``trainflow dashboards``: what Prometheus and Grafana show of runs, as files or in a Grafana.

Process: any.  Blocks: on the disk.
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
    from trainflow.monitoring.deployment_files import render_files  # noqa: PLC0415

    for name, content in render_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        say(str(path))
