"""Access tokens: nothing but a valid one is accepted, and none can be read back."""

import math
from pathlib import Path

import pytest

from tests.unit.service.history.records import HandClock
from trainflow.errors import ConfigError, HistoryError, TokenRefusedError, TokenScopeError
from trainflow.service.history import tokens as module
from trainflow.service.history.history import History
from trainflow.service.history.records import Scope

BOTH = [Scope.READ, Scope.SUBMIT]


def test_a_token_is_accepted_for_what_it_allows(history: History):
    made = history.tokens.create("ci", [Scope.READ])
    assert history.tokens.check(made.secret, Scope.READ).token_id == made.token.token_id
    assert history.tokens.check(made.secret).name == "ci"
    with pytest.raises(TokenScopeError, match="allows read, expected one that allows submit"):
        history.tokens.check(made.secret, Scope.SUBMIT)


def test_submit_does_not_imply_read(history: History):
    made = history.tokens.create("ci", [Scope.SUBMIT])
    with pytest.raises(TokenScopeError):
        history.tokens.check(made.secret, Scope.READ)


def test_the_database_does_not_hold_the_secret(history: History):
    made = history.tokens.create("ci", BOTH)
    with history.database.read() as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM tokens").all()
    secret = made.secret.split("_", 2)[2]  # which may have others in it
    assert len(secret) == 43
    assert not any(secret in str(value) for value in row)


def test_secrets_are_long_and_never_the_same(history: History):
    made = {history.tokens.create("ci", BOTH).secret for _ in range(20)}
    assert len(made) == 20
    assert all(len(secret.partition("_")[2].partition("_")[2]) == 43 for secret in made)


def forge(secret: str) -> str:
    """Return the secret with its last character changed."""
    return secret[:-1] + ("A" if secret[-1] != "A" else "B")


def test_what_is_forged_unknown_or_no_token_is_refused(history: History):
    made = history.tokens.create("ci", BOTH)
    other_id = "0" * 12
    unknown = made.secret.replace(made.token.token_id, other_id)
    for secret in (forge(made.secret), unknown, "", "x", "tf__", "é" * 60, made.secret + "\n"):
        with pytest.raises(TokenRefusedError):
            history.tokens.check(secret)
    with pytest.raises(TokenRefusedError) as of_unknown:
        history.tokens.check(unknown)
    with pytest.raises(TokenRefusedError) as of_forged:
        history.tokens.check(forge(made.secret))
    assert str(of_unknown.value) == str(of_forged.value)


def test_secrets_are_compared_in_constant_time(history: History, monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    made = history.tokens.create("ci", BOTH)
    history.tokens.check(made.secret)
    unknown = made.secret.replace(made.token.token_id, "0" * 12)
    with pytest.raises(TokenRefusedError):
        history.tokens.check(unknown)
    assert len(compared) == 2  # one that is unknown is compared, too


def test_a_token_expires(history: History, clock: HandClock):
    made = history.tokens.create("ci", BOTH, expires_at_s=clock.now_s + 10)
    clock.now_s += 9.9
    history.tokens.check(made.secret)
    clock.now_s += 0.1
    with pytest.raises(TokenRefusedError, match="has expired"):
        history.tokens.check(made.secret)


def test_a_token_is_revoked_by_its_id_or_by_itself(history: History, clock: HandClock):
    first, second = (history.tokens.create(name, BOTH) for name in "ab")
    clock.now_s += 5
    assert history.tokens.revoke(first.token.token_id).revoked_at_s == 1005.0
    assert history.tokens.revoke(second.secret).token_id == second.token.token_id
    clock.now_s += 5
    assert history.tokens.revoke(first.token.token_id).revoked_at_s == 1005.0
    for made in (first, second):
        with pytest.raises(TokenRefusedError, match="was revoked"):
            history.tokens.check(made.secret)
    with pytest.raises(ConfigError, match="token: got 'none', expected the id"):
        history.tokens.revoke("none")


def test_tokens_are_listed_the_newest_first(history: History, clock: HandClock):
    assert history.tokens.list() == ()
    first = history.tokens.create("first", [Scope.READ])
    clock.now_s += 1
    second = history.tokens.create("second", BOTH, expires_at_s=2000.0)
    assert history.tokens.list() == (second.token, first.token)


def test_the_last_use_is_noted_once_a_minute(history: History, clock: HandClock):
    made = history.tokens.create("ci", BOTH)

    def last_used() -> float | None:
        return history.tokens.list()[0].last_used_at_s

    assert last_used() is None
    history.tokens.check(made.secret)
    assert last_used() == 1000.0
    clock.now_s += 59
    history.tokens.check(made.secret)
    assert last_used() == 1000.0
    clock.now_s += 1
    history.tokens.check(made.secret)
    assert last_used() == 1060.0


def test_a_use_that_cannot_be_noted_refuses_nobody(
    history: History, monkeypatch: pytest.MonkeyPatch
):
    made = history.tokens.create("ci", BOTH)

    def refuse() -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(history.database, "write", refuse)
    assert history.tokens.check(made.secret).name == "ci"


@pytest.mark.parametrize(
    ("name", "scopes", "expires_at_s", "match"),
    [
        ("", BOTH, None, "name: got 0 characters"),
        ("a" * 201, BOTH, None, "name: got 201 characters"),
        ("ci", [], None, "scopes: got none"),
        ("ci", BOTH, 1000.0, "expires: got 1000.0"),
        ("ci", BOTH, math.nan, "expires: got nan"),
        ("ci", BOTH, math.inf, "expires: got inf"),
    ],
)
def test_what_makes_no_sense_is_refused(
    history: History, name: str, scopes: list[Scope], expires_at_s: float | None, match: str
):
    with pytest.raises(ConfigError, match=match):
        history.tokens.create(name, scopes, expires_at_s=expires_at_s)


def test_nothing_of_a_secret_is_logged(
    history: History, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    caplog.set_level(0)
    made = history.tokens.create("ci", [Scope.READ])
    with pytest.raises(TokenScopeError) as refused:
        history.tokens.check(made.secret, Scope.SUBMIT)
    secret = made.secret.split("_", 2)[2]  # which may have others in it
    assert secret not in caplog.text
    assert secret not in str(refused.value)
