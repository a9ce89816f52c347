"""``trainflow token``: make, list and revoke what clients of the service identify themselves by.

They talk to the database, not to the service: whoever may read that may make tokens.

Process: any.  Blocks: on the database, and on the disk for a token that goes to a file.
"""

import errno
import math
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainflow.checkpointing.whole_files import replace_file
from trainflow.cli.output import say
from trainflow.cli.tables import Output, OutputOption, format_table, write_answer
from trainflow.clock import SYSTEM_CLOCK
from trainflow.errors import ConfigError

if TYPE_CHECKING:
    from trainflow.service.history.records import NewToken, Token
    from trainflow.service.history.tokens import Tokens

token_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Access tokens of the service."
)

_MOST_DAYS = 36_500.0

_COLUMNS = {
    "TOKEN": "token_id",
    "NAME": "name",
    "SCOPES": "scopes",
    "CREATED": "created",
    "EXPIRES": "expires",
    "LAST_USED": "last_used",
    "STATE": "state",
}


class ScopeName(StrEnum):
    """What a token may allow."""

    READ = "read"
    SUBMIT = "submit"


SettingsFile = Annotated[
    Path | None, typer.Option("--config", metavar="SERVICE.yaml", help="The service's settings.")
]
Scopes = Annotated[
    list[ScopeName] | None,
    typer.Option(
        "--scope",
        help="What it allows; may be given again; read if not given. submit runs code: whoever has "
        "it can do what the service's user can.",
    ),
]
Days = Annotated[
    float | None,
    typer.Option("--days", min=0.001, max=_MOST_DAYS, help="Days after which it is refused."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Write the token into this new file, that you alone may read, instead of printing it.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="With --to: replace a file that is there.")]


@contextmanager
def _tokens(config: Path | None, *, makes_database: bool = False) -> Generator["Tokens"]:
    """Open tokens; where none are made, a database that isn't there is a path that is wrong."""
    from trainflow.service.history.database import require_there  # noqa: PLC0415
    from trainflow.service.history.history import open_history  # noqa: PLC0415
    from trainflow.service.settings import load_settings  # noqa: PLC0415

    url = load_settings(config).history.url
    if not makes_database:
        require_there(url)
    with open_history(url) as history:
        yield history.tokens


@token_app.command()
def create(  # noqa: PLR0913, PLR0917  each is an option
    name: Annotated[str, typer.Argument(help="Whose it is, for people.")],
    scope: Scopes = None,
    days: Days = None,
    to: TokenFile = None,
    force: Force = False,
    config: SettingsFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token, and print it or write it into a file: it can't be shown again."""
    from trainflow.service.history.records import Scope  # noqa: PLC0415

    if force and to is None:
        raise ConfigError("--force: got it without --to, expected a file to replace; leave it out")
    scopes = {Scope(str(each)) for each in scope or [ScopeName.READ]}
    expires_at_s = _find_end(days)
    with _tokens(config, makes_database=True) as tokens:
        if to is not None:
            with _place_for(to, replaces=force) as place:
                made = tokens.create(name, scopes, expires_at_s=expires_at_s)
                _keep(made, place, tokens)
            told = f"token {made.token.token_id} is in {to}, which you alone may read"
            write_answer(_describe(made.token) | {"file": str(to)}, told, output)
            return
        made = tokens.create(name, scopes, expires_at_s=expires_at_s)
    if output is Output.TABLE:
        say("keep it now; only a hash of it is stored:", err=True)
    write_answer(_describe(made.token) | {"token": made.secret}, made.secret, output)


def _find_end(days: float | None) -> float | None:
    """Return when a token of so many days is refused; None if it lasts."""
    if days is None:
        return None
    if math.isnan(days):  # which is within any range
        raise ConfigError(
            f"--days: got {days}, expected a number of days up to {_MOST_DAYS:g}; mend it, or "
            "leave --days out"
        )
    return SYSTEM_CLOCK.unix_s() + timedelta(days=days).total_seconds()


@contextmanager
def _place_for(file: Path, *, replaces: bool) -> Generator[Path]:
    """Give where a token's file is to be, made before there is a token unless one is replaced.

    Raises:
        ConfigError: no file can be made there; what was made is gone then.
    """
    place = file.resolve()
    try:
        if not replaces:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        elif place.exists() and not place.is_file():
            raise FileExistsError(errno.EEXIST, "something else than a file is there")
        else:
            tempfile.TemporaryFile(dir=place.parent).close()
    except OSError as error:
        raise _refuse_file(file, error) from error
    try:
        yield place
    except BaseException:
        if not replaces:
            place.unlink(missing_ok=True)
        raise


def _refuse_file(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--to: got {file} ({error.strerror or error}), expected a new file in a folder that is "
        "there and takes it; choose another one, or replace a file that is there by --force"
    )


def _keep(made: "NewToken", place: Path, tokens: "Tokens") -> None:
    """Write a token into a file for its owner's eyes alone, whole or not at all.

    Raises:
        ConfigError: that can't be written; the token is refused then, since nobody knows it.
    """
    try:
        replace_file(place, f"{made.secret}\n".encode())  # readable by its owner alone
    except OSError as error:
        tokens.revoke(made.token.token_id)
        raise _refuse_file(place, error) from error


@token_app.command("list")
def list_(config: SettingsFile = None, output: OutputOption = Output.TABLE) -> None:
    """List tokens, the newest first; those that are refused are among them."""
    with _tokens(config) as tokens:
        rows = [_describe(token) for token in tokens.list()]
    table = [row | {"scopes": ",".join(row["scopes"])} for row in rows]
    write_answer(rows, format_table(table, _COLUMNS), output)


@token_app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token, or the token itself.")],
    config: SettingsFile = None,
) -> None:
    """Refuse a token from now on."""
    with _tokens(config) as tokens:
        token = tokens.revoke(token_id)
    say(f"token {token.token_id} ({token.name}) is refused from now on")


def _describe(token: "Token") -> dict[str, Any]:
    """Return what is known of a token, its times for a person."""
    now_s = SYSTEM_CLOCK.unix_s()
    has_expired = token.expires_at_s is not None and token.expires_at_s <= now_s
    state = "revoked" if token.revoked_at_s is not None else "expired" if has_expired else "valid"
    return {
        "token_id": token.token_id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "created": _time(token.created_at_s),
        "expires": _time(token.expires_at_s),
        "last_used": _time(token.last_used_at_s),
        "state": state,
    }


def _time(at_s: float | None) -> str | None:
    if at_s is None:
        return None
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ArithmeticError, OSError, ValueError):  # beyond the calendar, or no number
        return f"{at_s:g} s after 1970"
