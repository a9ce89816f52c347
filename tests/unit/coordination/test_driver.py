"""What a driver says when Ray doesn't let it in, or has given its coordinator up."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.exceptions import ActorDiedError, AuthenticationError, RayTaskError

from trainflow.coordination import driver
from trainflow.coordination.driver import Run
from trainflow.errors import CoordinationError, UnreachableError


@pytest.fixture
def address() -> Iterator[str]:
    """A host and port at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refuse_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse)


@pytest.mark.parametrize(
    "error",
    [ConnectionError("Failed to connect"), AuthenticationError("no token"), ConnectionError()],
)
@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_cluster_that_may_want_a_token_is_said_to(
    error: Exception, mode: str | None, address: str, monkeypatch: pytest.MonkeyPatch
):
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    refuse_with(error, monkeypatch)
    with pytest.raises(UnreachableError) as refusal:
        driver.connect(address)
    message = str(refusal.value)
    assert message.startswith(f"address: got '{address}'")
    for named in ("InvalidAuthToken", "RAY_AUTH_MODE=token", "~/.ray/auth_token"):
        assert named in message
    assert f"RAY_AUTH_MODE is {mode or 'not set'}" in message
    assert "\n" not in message


def test_what_has_nothing_to_do_with_a_token_does_not_name_it(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    refuse_with(RuntimeError("another version of Ray"), monkeypatch)
    with pytest.raises(UnreachableError, match="another version of Ray") as refusal:
        driver.connect(address)
    assert "token" not in str(refusal.value)


def test_a_coordinator_that_could_not_be_made_is_told_by_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
):
    trace = "Traceback (most recent call last):\n  ...\nOSError: a full disk"
    cause = RayTaskError("Coordinator.__init__", trace, OSError("a full disk"), actor_id="ab")

    def fail(*_: object, **__: object) -> None:
        raise ActorDiedError(cause)

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(CoordinationError) as end:
        Run("tiny-abcdef", None)._ask(Path())
    assert str(end.value).endswith("its result was read: OSError: a full disk")
    assert "\n" not in str(end.value)
