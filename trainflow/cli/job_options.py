"""What commands on a job take."""

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one setting; may be given again."),
]
