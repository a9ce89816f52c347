"""Documents arrive in their order at a real server; one that hangs or fails hurts nobody."""

import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.monitoring.webhook.servers import Server, serving
from trainflow.config.webhook import WebhookConfig
from trainflow.monitoring.webhook import sender as sender_module
from trainflow.monitoring.webhook.backoff import Backoff, may_pass
from trainflow.monitoring.webhook.post import PostError, WebhookPost
from trainflow.monitoring.webhook.sender import WebhookSender

WITHIN_S = 30.0
AT_ONCE = Backoff(most_tries=3, first_s=0.001)
PATIENT = Backoff(3, 3600.0, 3600.0, closing_s=0.003, longest_closing_s=0.001)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@contextmanager
def sending(
    url: str, backoff: Backoff = AT_ONCE, timeout_s: float = 20.0
) -> Generator[WebhookSender]:
    sender = WebhookSender(WebhookPost(WebhookConfig(url=url, timeout_s=timeout_s)), backoff)
    try:
        yield sender
    finally:
        sender.begin_closing()
        assert sender.wait_closed(WITHIN_S)


def post_to(server: Server, **settings: str) -> None:
    WebhookPost(WebhookConfig.model_validate({"url": server.url} | settings))(b"{}")


def refusal(server: Server, status: int) -> PostError:
    server.answer = lambda _: status
    with pytest.raises(PostError) as caught:
        post_to(server)
    return caught.value


def test_documents_arrive_in_their_order(server: Server):
    documents = [f"{n}".encode() for n in range(50)]
    with sending(server.url) as sender:
        for document in documents:
            sender.send(document)
    assert server.documents == documents
    assert (sender.num_dropped, sender.trouble) == (0, "")


def test_what_fails_for_a_while_is_sent_again_and_nothing_overtakes_it(server: Server):
    statuses = iter([500, 503, 200, 200])
    server.answer = lambda _: next(statuses)
    with sending(server.url) as sender:
        sender.send(b"first")
        sender.send(b"second")
        for _ in range(4):
            assert server.arrived.acquire(timeout=WITHIN_S)
    assert server.documents == [b"first", b"first", b"first", b"second"]
    assert sender.num_dropped == 0


def test_what_fails_each_time_is_given_up_and_the_next_is_sent(server: Server):
    server.answer = lambda document: 500 if document == b"bad" else 200
    with sending(server.url) as sender:
        sender.send(b"bad")
        sender.send(b"good")
        for _ in range(4):
            assert server.arrived.acquire(timeout=WITHIN_S)
    assert server.documents == [b"bad"] * 3 + [b"good"]
    assert (sender.num_dropped, sender.trouble) == (1, "127.0.0.1 answered 500")


def test_what_is_refused_for_good_is_not_sent_again(server: Server):
    server.answer = lambda _: 404
    with sending(server.url) as sender:
        sender.send(b"bad")
    assert server.documents == [b"bad"]
    assert sender.trouble == "127.0.0.1 answered 404"


def test_a_server_that_hangs_holds_nobody_up(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender_module, "MOST_WAITING", 10)
    server.answer = server.hang
    with sending(server.url) as sender:
        sender.send(b"on its way")
        assert server.arrived.acquire(timeout=WITHIN_S)
        for _ in range(25):
            sender.send(b"more")
        assert sender.num_dropped == 15
        assert sender.trouble == "the server is slow: 10 events wait for it"
        server.is_freed.set()
    assert len(server.documents) == 11


def test_a_server_that_hangs_is_given_up_in_time(server: Server):
    server.answer = server.hang
    with pytest.raises(PostError, match=r"127\.0\.0\.1: TimeoutError") as caught:
        WebhookPost(WebhookConfig(url=server.url, timeout_s=0.1))(b"{}")
    assert caught.value.may_pass


def test_nobody_waits_for_it_at_the_end(server: Server):
    server.answer = server.hang
    with sending(server.url) as sender:
        for _ in range(3):
            sender.send(b"late")
        assert server.arrived.acquire(timeout=WITHIN_S)
        sender.begin_closing()
        assert not sender.wait_closed(0.01)
        assert sender.num_dropped == 3
        assert sender.trouble == "the server did not answer in time"
        sender.send(b"too late")
        assert sender.num_dropped == 4
        server.is_freed.set()


def test_the_end_cuts_a_long_wait_short(server: Server):
    server.answer = lambda _: 500
    with sending(server.url, PATIENT) as sender:
        sender.send(b"again in an hour")
        assert server.arrived.acquire(timeout=WITHIN_S)
    assert sender.num_dropped == 1


def test_what_comes_at_the_end_is_sent_again_too(server: Server):
    statuses = iter([500, 503, 200])
    server.answer = lambda _: next(statuses)
    with sending(server.url, PATIENT) as sender:
        sender.send(b"ended")
        sender.begin_closing()
    assert server.documents == [b"ended"] * 3
    assert sender.num_dropped == 0


def test_what_is_tried_again_at_the_end_leaves_with_whoever_waits_for_it(server: Server):
    server.answer = lambda _: 500
    sender = WebhookSender(
        WebhookPost(WebhookConfig(url=server.url)),
        Backoff(3, 3600.0, 3600.0, closing_s=3600.0, longest_closing_s=3600.0),
    )
    sender.send(b"in an hour")
    assert server.arrived.acquire(timeout=WITHIN_S)
    sender.begin_closing()
    assert not sender.wait_closed(0.01)
    assert sender.wait_closed(WITHIN_S), "its thread has ended"
    assert sender.num_dropped == 1


def test_waits_at_the_end_are_short_and_bounded():
    backoff = Backoff(closing_s=4.0, longest_closing_s=1.0)
    assert backoff.decide_closing_wait(0.5, 0.0) == 0.5
    assert backoff.decide_closing_wait(16.0, 0.0) == 1.0
    assert backoff.decide_closing_wait(16.0, 3.75) == 0.25
    assert backoff.decide_closing_wait(16.0, 4.0) is None


def test_a_server_that_refuses_connections_is_named_without_its_path():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/secret-path"
        with sending(url) as sender:
            sender.send(b"nobody hears")
    assert (sender.num_dropped, sender.trouble) == (1, "127.0.0.1: ConnectionRefusedError")


@pytest.mark.parametrize("bug", [ZeroDivisionError, SystemExit])
def test_a_bug_costs_one_document(bug: type[BaseException]):
    posted = threading.Semaphore(0)

    def post(document: bytes) -> None:
        posted.release()
        if document == b"odd":
            raise bug

    sender = WebhookSender(post, AT_ONCE)
    sender.send(b"odd")
    sender.send(b"usual")
    sender.begin_closing()
    assert sender.wait_closed(WITHIN_S)
    assert (sender.num_dropped, sender.trouble) == (1, bug.__name__)
    assert posted.acquire(timeout=0)
    assert posted.acquire(timeout=0)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_nobody_is_followed_elsewhere(server: Server, status: int):
    assert not refusal(server, status).may_pass
    assert len(server.documents) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_no_secret_is_told(server: Server, status: int, tmp_path: Path):
    (tmp_path / "token").write_text("secret-token\n")
    server.answer = lambda _: status
    with pytest.raises(PostError) as caught:
        post_to(server, token_file=str(tmp_path / "token"))
    assert "secret" not in str(caught.value)
    assert caught.value.may_pass == may_pass(status)


def test_a_token_is_read_each_time(server: Server, tmp_path: Path):
    token = tmp_path / "token"
    for value in ("first", "second"):
        token.write_text(f"{value}\n")
        post_to(server, token_file=str(token))
        assert server.headers["Authorization"] == f"Bearer {value}"
    assert server.headers["Content-Type"] == "application/json"


def test_an_address_is_read_from_its_file(server: Server, tmp_path: Path):
    (tmp_path / "url").write_text(f" {server.url}\n")
    WebhookPost(WebhookConfig(url_file=str(tmp_path / "url")))(b"there")
    assert server.documents == [b"there"]


@pytest.mark.parametrize("content", [None, b"", b"ftp://secret.example.org/", b"\xff"])
def test_a_file_that_is_missing_or_odd_is_named_and_not_shown(
    content: bytes | None, tmp_path: Path
):
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PostError, match=re.escape(str(path))) as caught:
        WebhookPost(WebhookConfig(url_file=str(path)))(b"{}")
    assert "secret" not in str(caught.value)
    assert caught.value.may_pass, "somebody may mend it meanwhile"


@pytest.mark.parametrize("content", ["secret\nmore", "secr\u00e9t", ""])
def test_a_token_that_can_be_no_header_is_told_and_not_shown(
    server: Server, tmp_path: Path, content: str
):
    (tmp_path / "token").write_text(content)
    with pytest.raises(PostError, match="token: got no token, expected one line") as caught:
        post_to(server, token_file=str(tmp_path / "token"))
    assert "secret" not in str(caught.value)


def test_waits_grow_up_to_a_bound_and_end():
    backoff = Backoff(most_tries=5, first_s=1.0, longest_s=3.0)
    assert [backoff.decide_wait(n) for n in range(1, 6)] == [1.0, 2.0, 3.0, 3.0, None]


def test_what_may_pass_later():
    assert [s for s in (400, 401, 404, 408, 413, 425, 429, 500, 502, 503) if may_pass(s)] == [
        408,
        425,
        429,
        500,
        502,
        503,
    ]
