"""``trainflow token``: make, list and revoke what clients of the service identify themselves by.

They talk to the database, not to the service: whoever may read that may make tokens.

Process: any.  Blocks: on the database, and on the disk for a token that goes to a file.
"""

import errno
import math
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
        help="Write the token into this file, that you alone may read, instead of printing it.",
    ),
]


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
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, for people.")],
    scope: Scopes = None,
    days: Days = None,
    to: TokenFile = None,
    config: SettingsFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token, and print it or write it into a file: it can't be shown again."""
    from trainflow.service.history.records import Scope  # noqa: PLC0415

    expires_at_s = None
    if days is not None:
        if math.isnan(days):  # which is within any range
            raise ConfigError(
                f"--days: got {days}, expected a number of days up to {_MOST_DAYS:g}; mend it, or "
                "leave --days out"
            )
        expires_at_s = SYSTEM_CLOCK.unix_s() + timedelta(days=days).total_seconds()
    scopes = {Scope(str(each)) for each in scope or [ScopeName.READ]}
    with _tokens(config, makes_database=True) as tokens:
        made = tokens.create(name, scopes, expires_at_s=expires_at_s)
        if to is not None:
            _keep(made, to, tokens)
            told = f"token {made.token.token_id} is in {to}, which you alone may read"
            write_answer(_describe(made.token) | {"file": str(to)}, told, output)
            return
    if output is Output.TABLE:
        say("keep it now; only a hash of it is stored:", err=True)
    write_answer(_describe(made.token) | {"token": made.secret}, made.secret, output)


def _keep(made: "NewToken", file: Path, tokens: "Tokens") -> None:
    """Write a token into a file for its owner's eyes alone; one that is there is replaced.

    Raises:
        ConfigError: that can't be written; the token is refused then, since nobody knows it.
    """
    place = file.resolve()
    try:
        if place.exists() and not place.is_file():
            raise FileExistsError(errno.EEXIST, "something else than a file is there")
        replace_file(place, f"{made.secret}\n".encode())  # readable by its owner alone
    except OSError as error:
        tokens.revoke(made.token.token_id)
        raise ConfigError(
            f"--to: got {file} ({error.strerror or error}), expected a file that can be written; "
            "choose another one"
        ) from error


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
