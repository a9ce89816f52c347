"""``trainflow serve`` and ``trainflow token``."""

import errno
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import CallMain
from trainflow.cli import head, token_command
from trainflow.cli.places import TOKEN_FILE, read_token
from trainflow.cli.serving_cluster import Head, ServingCluster
from trainflow.errors import ConflictError, CoordinationError
from trainflow.service import http_server
from trainflow.service.history.history import open_history
from trainflow.service.history.records import Scope
from trainflow.service.settings import ServiceSettings

OFF = "--set=authentication=off"


class FakeServing:
    """Serve as the command asks it.

    Attributes:
        calls: in order.
        error: that deploying raises.
        is_open: whether others may use the cluster.
        head_dies: once the service answers, instead of a signal.
        asked_early: signals that come while it is deployed, before it answers.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.is_open = False
        self.head_dies = False
        self.asked_early: list[signal.Signals] = []
        self._dead: str | None = None

    def deploy(
        self, cluster: ServingCluster, settings: ServiceSettings, is_unwanted: Callable[[], bool]
    ) -> Head | None:
        self.calls.append(f"deploy {settings.http.port} at {cluster.address}")
        if self.error is not None:
            raise self.error
        for each in self.asked_early:
            signal.raise_signal(each)
        if is_unwanted():
            return None
        if self.head_dies:
            self._dead = "43 (raylet)"
        else:
            signal.raise_signal(signal.SIGTERM)
        return Head("10.0.0.1:6379", self.is_open, "10.0.0.1:8266")

    def undeploy(self) -> None:
        self.calls.append("undeploy")

    @contextmanager
    def serving_head(self, cpus: float) -> Iterator[Any]:
        self.calls.append(f"head {cpus:g}")
        node = SimpleNamespace(find_dead=lambda: self._dead, pid=42)
        try:
            yield SimpleNamespace(address="1.2.3.4:5", head=node)
        finally:
            self.calls.append("end head")


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServing:
    fake = FakeServing()

    def deploy(
        cluster: ServingCluster, settings: ServiceSettings, is_unwanted: Callable[[], bool]
    ) -> Head | None:
        return fake.deploy(cluster, settings, is_unwanted)

    monkeypatch.setattr(ServingCluster, "deploy", deploy)
    monkeypatch.setattr(ServingCluster, "undeploy", lambda _: fake.undeploy())
    monkeypatch.setattr(http_server, "require_free_port", lambda _http: None)
    monkeypatch.setattr(head, "serving_head", fake.serving_head)
    return fake


def test_a_head_of_its_own_lives_as_long_as_the_service(
    fake: FakeServing, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("serve", "--cpus=3", "--set=http.port=8123") == 0
    assert fake.calls == ["head 3", "deploy 8123 at 1.2.3.4:5", "undeploy", "end head"]
    captured = capsys.readouterr()
    assert "serving at http://127.0.0.1:8123" in captured.out
    assert "ray job submit` finds its head with --address http://10.0.0.1:8266" in captured.out
    assert "there is no token yet" in captured.err
    assert "run code there" not in captured.err
    assert [line.split(";")[0] for line in captured.out.splitlines()[-2:]] == [
        "ending the service",
        "ending the head, and jobs on it",
    ]


def test_a_head_that_dies_ends_the_service_with_a_word(
    fake: FakeServing, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    fake.head_dies = True
    assert call_main("serve", "--cpus=3") == 5
    assert fake.calls == ["head 3", "deploy 8000 at 1.2.3.4:5", "end head"]
    assert "head: got no process 43 (raylet) any more" in capsys.readouterr().err


def test_a_head_that_was_left_is_told_of_before_the_port_that_it_holds(
    fake: FakeServing,
    call_main: CallMain,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(_http: object) -> None:
        raise ConflictError("http.port: got 8000")

    running = head.HeadRecord("10.0.0.1:6379", 42, 0.0, "/tmp/tf-head")
    monkeypatch.setattr(http_server, "require_free_port", refuse)
    monkeypatch.setattr(head, "read_head", lambda: running)
    assert call_main("serve") == 6
    told = capsys.readouterr()
    assert told.out == ""
    assert "head: got one that runs already, at 10.0.0.1:6379 (pid 42)" in told.err
    assert "`trainflow down`" in told.err
    assert call_main("serve", "--address=10.0.0.1:6379") == 6
    assert "http.port: got 8000" in capsys.readouterr().err
    assert fake.calls == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_may_be_asked_for_before_it_answers(
    number: signal.Signals,
    fake: FakeServing,
    call_main: CallMain,
    capsys: pytest.CaptureFixture[str],
):
    fake.asked_early = [number]
    assert call_main("serve", "--cpus=3") == 0
    assert fake.calls == ["head 3", "deploy 8000 at 1.2.3.4:5", "end head"]
    told = capsys.readouterr().out
    assert "serving at" not in told
    assert "ending the service" in told


def test_what_was_begun_on_a_cluster_of_others_is_taken_off_it(
    fake: FakeServing, call_main: CallMain
):
    fake.asked_early = [signal.SIGINT]
    assert call_main("serve", "--address=10.0.0.1:6379") == 0
    assert fake.calls == ["deploy 8000 at 10.0.0.1:6379", "undeploy"]


def test_who_asks_twice_is_not_kept(fake: FakeServing, call_main: CallMain):
    fake.asked_early = [signal.SIGINT, signal.SIGINT]
    assert call_main("serve", "--cpus=3") == 130
    assert fake.calls == ["head 3", "deploy 8000 at 1.2.3.4:5", "end head"]


def test_no_head_is_left_behind_where_a_terminal_is_closed(fake: FakeServing, call_main: CallMain):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # even if it was started under nohup
    fake.asked_early = [signal.SIGHUP]
    try:
        assert call_main("serve", "--cpus=3") == 128 + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
    assert fake.calls == ["head 3", "deploy 8000 at 1.2.3.4:5", "end head"]


def test_that_others_may_use_the_cluster_is_said(
    fake: FakeServing, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    fake.is_open = True
    assert call_main("serve", "--address=head:6379", "--detach") == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "run code" in line]
    assert "the cluster at 10.0.0.1:6379 takes whoever reaches it from other machines" in said


@pytest.mark.parametrize(
    ("options", "cpus"), [([], os.cpu_count()), (["--cpus=1"], 1), (["--cpus=0"], 0)]
)
def test_a_head_declares_its_cores_or_what_it_is_told_none_included(
    options: list[str], cpus: int, fake: FakeServing, call_main: CallMain
):
    assert call_main("serve", *options) == 0
    assert fake.calls[0] == f"head {cpus}"


def test_on_a_cluster_it_may_be_left(fake: FakeServing, call_main: CallMain):
    assert call_main("serve", "--address=10.0.0.1:6379", "--detach") == 0
    assert fake.calls == ["deploy 8000 at 10.0.0.1:6379"]


def test_that_everybody_may_ask_is_said(
    fake: FakeServing, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("serve", OFF) == 0
    assert "authentication is off: everybody on this machine may submit jobs" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([OFF, "--set=http.host=0.0.0.0"], "others could run code"),
        (["--detach"], "--detach: got it without an address"),
        (["--address=10.0.0.1:6379", "--cpus=2"], "--cpus: got 2"),
        (["--address=10.0.0.1:6379", "--cpus=0"], "--cpus: got 0"),
        (["--cpus=-1"], "--cpus"),
        (["--cpus=1.5"], "--cpus"),  # Ray counts a node's in whole ones
        (["--cpus=nan"], "--cpus"),
        (["--config=absent.yaml"], "No such file"),
        (["--set=http.port=many"], "http.port"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    options: list[str],
    said: str,
    fake: FakeServing,
    call_main: CallMain,
    capsys: pytest.CaptureFixture[str],
):
    assert call_main("serve", *options) == 2
    assert said in capsys.readouterr().err
    assert fake.calls == []


def test_a_service_that_does_not_come_up_leaves_nothing(fake: FakeServing, call_main: CallMain):
    fake.error = CoordinationError("the service did not come up")
    assert call_main("serve", "--cpus=2") == 1
    assert fake.calls == ["head 2", "deploy 8000 at 1.2.3.4:5", "end head"]


def test_a_token_is_shown_once_and_kept_as_a_hash(
    home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("token", "create", "laptop", "--scope=read", "--scope=submit") == 0
    secret = capsys.readouterr().out.strip()
    with open_history() as history:
        assert history.tokens.check(secret, Scope.SUBMIT).name == "laptop"
    assert secret.encode() not in (home / "history.db").read_bytes()

    assert call_main("token", "list", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["scopes"], row["state"]) == ("laptop", ["read", "submit"], "valid")
    assert row["expires"] is None
    assert call_main("token", "list", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)[0]["scopes"] == ["read", "submit"]
    assert call_main("token", "list") == 0
    assert " read,submit " in capsys.readouterr().out

    assert call_main("token", "revoke", row["token_id"]) == 0
    capsys.readouterr()
    assert call_main("token", "list") == 0
    assert "revoked" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [("list",), ("revoke", "anything")])
def test_tokens_of_a_database_that_is_not_there_are_refused(
    asked: tuple[str, ...],
    call_main: CallMain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("TRAINFLOW_DATABASE_URL", f"sqlite:///{tmp_path}/nope/x.db")
    assert call_main("token", *asked) == 2
    assert f"got {tmp_path}/nope/x.db, where no file is" in capsys.readouterr().err
    assert not (tmp_path / "nope").exists()


def test_a_token_is_written_for_the_eyes_of_its_owner_alone(
    home: Path, call_main: CallMain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "token"
    umask = os.umask(0)
    try:
        assert call_main("token", "create", "me", "--to", file) == 0
        (tmp_path / "open").write_text("an older one")
        assert call_main("token", "create", "me", "--to", tmp_path / "open", "--force") == 0
    finally:
        os.umask(umask)
    told = "".join(capsys.readouterr())
    for each in (file, tmp_path / "open"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
        secret = read_token({TOKEN_FILE: str(each)})
        assert secret is not None
        with open_history() as history:
            assert history.tokens.check(secret).name == "me"
        assert secret not in told


def test_where_no_file_can_be_made_no_token_is(
    home: Path, call_main: CallMain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("the token of another")
    for place in ("", "file/token", "file", "nowhere/token"):
        assert call_main("token", "create", "me", "--to", tmp_path / place) == 2
        told = capsys.readouterr().err
        assert f"--to: got {tmp_path / place} (" in told
        assert "by --force" in told
    for place in (tmp_path, tmp_path / "nowhere" / "token", Path("/dev/null")):
        assert call_main("token", "create", "me", "--to", place, "--force") == 2
        assert f"--to: got {place} (" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "the token of another"
    assert not (tmp_path / "nowhere").exists()
    with open_history() as history:
        assert not history.tokens.list()


def test_a_token_that_is_refused_leaves_no_file(home: Path, call_main: CallMain, tmp_path: Path):
    assert call_main("token", "create", "", "--to", tmp_path / "token") == 2
    assert not (tmp_path / "token").exists()


def test_a_token_that_could_not_be_written_is_refused_from_then_on(
    home: Path, call_main: CallMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(token_command, "replace_file", fill)
    assert call_main("token", "create", "me", "--to", tmp_path / "token") == 2
    assert not (tmp_path / "token").exists()
    with open_history() as history:
        assert [each.revoked_at_s is None for each in history.tokens.list()] == [False]


def test_a_token_reads_unless_told_otherwise_and_may_expire(
    home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("token", "create", "ci", "--days=7", "-o", "json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["scopes"], made["state"]) == (["read"], "valid")
    assert made["token"].startswith("tf_")
    assert made["expires"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["revoke", "nobody"],
        ["create", ""],
        ["create", "a", "--days=0"],
        ["create", "a", "--days=36501"],
        ["create", "a", "--days=4000000"],
        ["create", "a", "--days=1e10"],
        ["create", "a", "--days=inf"],
        ["create", "a", "--days=nan"],
        ["create", "a", "--scope=all"],
        ["create", "a", "--force"],
    ],
)
def test_a_wrong_token_command_is_refused(arguments: list[str], home: Path, call_main: CallMain):
    assert call_main("token", *arguments) == 2
    with open_history() as history:
        assert not history.tokens.list()


def test_a_choice_that_is_none_is_refused_in_plain_words(
    home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("token", "create", "a", "--scope=nonsense") == 2
    assert "'--scope': 'nonsense' is not one of 'read', 'submit'" in capsys.readouterr().err


def test_a_token_lasts_a_hundred_years_at_most(
    home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    assert call_main("token", "create", "ci", "--days=36500", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["expires"].startswith("21")


@pytest.mark.parametrize("expires_at_s", [3.5e11, 1e300])
def test_tokens_are_listed_whatever_was_kept_of_them(
    expires_at_s: float, home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    with open_history() as history:
        history.tokens.create("odd", {Scope.READ}, expires_at_s=expires_at_s)
    assert call_main("token", "list", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["expires"] == f"{expires_at_s:g} s after 1970"
