"""What commands on a folder of checkpoints take."""

from typing import Annotated

import typer

from trainflow.cli.exit_codes import ExitCode
from trainflow.errors import JobNotFoundError


def require_named(url: str) -> str:
    """Return the URL of a folder as it is; refuses an empty one, which would be this directory."""
    if not url.strip():
        raise typer.BadParameter(
            f"got {url!r}, expected the URL or path of a folder; for this directory say ."
        )
    return url


Url = Annotated[
    str,
    typer.Argument(help="The folder: checkpoint.url of the run.", callback=require_named),
]
NewestOrStep = Annotated[int | None, typer.Argument(help="Its step; the newest if left out.")]

_MEANINGS = {
    ExitCode.SUCCESS: "done, and nothing is wrong",
    ExitCode.FAILED: "something is damaged, differs or can't be written; it is on stderr",
    ExitCode.USAGE: "wrong usage or configuration; nothing was done",
    ExitCode.NOT_FOUND: "no such checkpoint",
    ExitCode.CONFLICT: "something is already there, or a run may be writing there",
}
EPILOGUE = "\n".join(
    ["\b", "Exit codes:", *(f"  {code:>3}  {text}" for code, text in _MEANINGS.items())]
)
"""As `trainflow.cli.exit_codes.EPILOGUE`, for commands that have nothing to do with a run."""


def choose_step(steps: list[int], step: int | None, url: str) -> int:
    """Return the step that is meant; raises JobNotFoundError if it isn't there."""
    if steps and step in {None, *steps}:
        return steps[-1] if step is None else step
    known = ", ".join(map(str, steps)) or "none"
    wanted = "a checkpoint" if step is None else f"step {step}"
    raise JobNotFoundError(f"{url}: got {wanted}, expected one of those that are there: {known}")


def absolute(url: str) -> str:
    """Return a path of this machine from its root on; a URL as it is."""
    from pathlib import Path  # noqa: PLC0415

    return url if "://" in url or "::" in url else str(Path(url).expanduser().absolute())
