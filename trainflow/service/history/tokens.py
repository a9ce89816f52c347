"""Access tokens: made, listed, revoked, checked. Only a hash of each is kept.

A token is random and long, so one round of SHA-256 hides it: there is nothing to guess.

Process: any that serves the history.  Thread: any.  Blocks: on the database.  Fails: HistoryError.
"""

import hashlib
import hmac
import logging
import math
import re
import secrets
from collections.abc import Collection

from sqlalchemy import Row, insert, or_, select, update

from trainflow.clock import Clock
from trainflow.errors import ConfigError, HistoryError, TokenRefusedError, TokenScopeError
from trainflow.service.history import schema
from trainflow.service.history.database import Database
from trainflow.service.history.records import NewToken, Scope, Token
from trainflow.service.history.storable import storable_text

logger = logging.getLogger(__name__)

_PREFIX = "tf"
_ID_BYTES = 6
_SECRET_BYTES = 32
_FORM = re.compile(rf"{_PREFIX}_([0-9a-f]{{{2 * _ID_BYTES}}})_([A-Za-z0-9_-]{{43}})", re.ASCII)
_NOTE_USE_EVERY_S = 60.0
_MAX_NAME = 200
# Compared with if there is no token of that id, so that the answer takes as long.
_NO_DIGEST = hashlib.sha256(b"").hexdigest()

_T = schema.tokens.c


class Tokens:
    """All access tokens."""

    def __init__(self, database: Database, clock: Clock):
        self._database = database
        self._clock = clock

    def create(
        self, name: str, scopes: Collection[Scope], *, expires_at_s: float | None = None
    ) -> NewToken:
        """Make a token; its secret is in the answer, and nowhere else.

        Args:
            name: for people; need not be unique.
            scopes: what it allows; at least one.
            expires_at_s: CLOCK_REALTIME from when on it is refused; None: never.

        Raises:
            ConfigError: no name, no scope, or it would have expired.
            HistoryError: the database doesn't answer.
        """
        now_s = self._clock.unix_s()
        _require_sound(name, scopes, expires_at_s, now_s)
        token_id = secrets.token_hex(_ID_BYTES)
        secret = f"{_PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        token = Token(
            token_id=token_id,
            name=storable_text(name),
            scopes=frozenset(scopes),
            created_at_s=now_s,
            expires_at_s=expires_at_s,
            revoked_at_s=None,
            last_used_at_s=None,
        )
        row = insert(schema.tokens).values(
            token_id=token_id,
            name=token.name,
            digest=_digest(secret),
            may_read=Scope.READ in scopes,
            may_submit=Scope.SUBMIT in scopes,
            created_at_s=now_s,
            expires_at_s=expires_at_s,
        )
        with self._database.write() as connection:
            connection.execute(row)
        return NewToken(token, secret)

    def list(self) -> tuple[Token, ...]:
        """Return all tokens, the newest first; those that are refused are among them.

        Raises:
            HistoryError: the database doesn't answer.
        """
        query = select(schema.tokens).order_by(_T.created_at_s.desc(), _T.token_id)
        with self._database.read() as connection:
            return tuple(_to_token(row) for row in connection.execute(query))

    def revoke(self, token_id: str) -> Token:
        """Refuse a token from now on; one that was revoked stays so, as of then.

        Args:
            token_id: as `list` has it, or the token itself.

        Raises:
            ConfigError: there is none of that id.
            HistoryError: the database doesn't answer.
        """
        form = _FORM.fullmatch(token_id)
        wanted = form[1] if form else token_id
        change = update(schema.tokens).where(_T.token_id == wanted, _T.revoked_at_s.is_(None))
        with self._database.write() as connection:
            connection.execute(change.values(revoked_at_s=self._clock.unix_s()))
            row = connection.execute(select(schema.tokens).where(_T.token_id == wanted)).first()
        if row is None:
            raise ConfigError(f"token: got {wanted[:40]!r}, expected the id of one; list them")
        return _to_token(row)

    def check(self, secret: str, scope: Scope | None = None) -> Token:
        """Return the token that a bearer has sent, if it is valid.

        Args:
            secret: what was sent, whatever it is.
            scope: that it must allow; None: any.

        Raises:
            TokenRefusedError: it is unknown, expired or revoked.
            TokenScopeError: it does not allow that.
            HistoryError: the database doesn't answer.
        """
        form = _FORM.fullmatch(secret)
        if form is None:
            raise TokenRefusedError("token: got one of another form, expected one of this service")
        with self._database.read() as connection:
            row = connection.execute(select(schema.tokens).where(_T.token_id == form[1])).first()
        digest = _NO_DIGEST if row is None else row.digest
        if not hmac.compare_digest(digest, _digest(secret)) or row is None:
            raise TokenRefusedError("token: got one that is unknown, expected one of this service")
        token = _to_token(row)
        now_s = self._clock.unix_s()
        _require_valid(token, now_s)
        if scope is not None:
            require_scope(token, scope)
        self._note_use(token, now_s)
        return token

    def _note_use(self, token: Token, now_s: float) -> None:
        """Keep when a token was last used; not each time, since that is a transaction.

        Where that can't be written, as on a full disk, the token is as good as before; and nobody
        who only reads waits for whoever is writing.
        """
        due_before_s = now_s - _NOTE_USE_EVERY_S
        if token.last_used_at_s is not None and token.last_used_at_s > due_before_s:
            return
        is_due = or_(_T.last_used_at_s.is_(None), _T.last_used_at_s <= due_before_s)
        change = update(schema.tokens).where(_T.token_id == token.token_id, is_due)
        try:
            with self._database.write_at_once() as connection:
                connection.execute(change.values(last_used_at_s=now_s))
        except HistoryError as error:
            logger.info("the use of token %s is not noted: %s", token.token_id, error)


def _require_sound(
    name: str, scopes: Collection[Scope], expires_at_s: float | None, now_s: float
) -> None:
    if not 1 <= len(name) <= _MAX_NAME:
        raise ConfigError(f"name: got {len(name)} characters, expected 1 to {_MAX_NAME}")
    if not scopes:
        raise ConfigError("scopes: got none, expected read, submit or both")
    if expires_at_s is not None and not (math.isfinite(expires_at_s) and expires_at_s > now_s):
        raise ConfigError(f"expires: got {expires_at_s}, expected a time after now, {now_s:.0f}")


def _require_valid(token: Token, now_s: float) -> None:
    """Raise TokenRefusedError if a token that is known is not to be accepted."""
    if token.revoked_at_s is not None:
        raise TokenRefusedError(f"{_show(token)}, which was revoked, expected one that is valid")
    if token.expires_at_s is not None and now_s >= token.expires_at_s:
        raise TokenRefusedError(f"{_show(token)}, which has expired, expected one that is valid")


def require_scope(token: Token, scope: Scope) -> None:
    """Raise TokenScopeError if a valid token does not allow something."""
    if scope not in token.scopes:
        allowed = ", ".join(sorted(token.scopes))
        raise TokenScopeError(
            f"{_show(token)}, which allows {allowed}, expected one that allows {scope}"
        )


def _show(token: Token) -> str:
    return f"token: got {token.token_id} ({token.name})"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _to_token(row: Row[tuple[object, ...]]) -> Token:
    allowed = {Scope.READ: row.may_read, Scope.SUBMIT: row.may_submit}
    return Token(
        token_id=row.token_id,
        name=row.name,
        scopes=frozenset(scope for scope, is_allowed in allowed.items() if is_allowed),
        created_at_s=row.created_at_s,
        expires_at_s=row.expires_at_s,
        revoked_at_s=row.revoked_at_s,
        last_used_at_s=row.last_used_at_s,
    )
