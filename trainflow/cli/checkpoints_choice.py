"""What commands on a folder of checkpoints take."""

from pathlib import Path
from typing import Annotated

import typer

from trainflow.cli.exit_codes import ExitCode
from trainflow.errors import ConfigError, JobNotFoundError

_LOCAL_SCHEMES = ("file", "local")


def require_named(url: str) -> str:
    """Return the URL of a folder as it is; refuses an empty one, which would be this directory."""
    if not _without_scheme(url).strip():
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
    [
        "\b",
        "Exit codes:",
        *(f"  {code:>3}  {text}" for code, text in _MEANINGS.items()),
        "  129, 143  ended by SIGHUP or SIGTERM; what was half done is removed",
    ]
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
    """Return a path of this machine from its root on, also where it has a scheme; a URL as it is.

    Raises:
        ConfigError: it names no folder, or one of a user who isn't known here.
    """
    path = _without_scheme(url)
    if "://" in path or "::" in path:
        return url
    if not path:
        raise ConfigError(f"got {url!r}, expected the path of a folder after it; add one")
    return str(local_path(path))


def local_path(text: str) -> Path:
    """Return a path of this machine from its root on, also if it begins with ``~``.

    Raises:
        ConfigError: of a user who isn't known here.
    """
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"got {text!r}, whose home isn't known, expected a folder of this machine; write it "
            "from its root on"
        ) from error


def _without_scheme(url: str) -> str:
    """Return the path in a URL of this machine; any other as it is."""
    scheme, found, path = url.partition("://")
    return path if found and scheme in _LOCAL_SCHEMES else url
