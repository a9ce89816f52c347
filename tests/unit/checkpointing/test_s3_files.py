"""How S3 is spoken to, against a server that answers as it is told."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing import bounded_calls, s3_files
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.s3_files import S3Files
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointConflictError, StoreError

pytestmark = pytest.mark.slow

HANG, DROP = "hang", "drop"
OK = 200
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message></Error>"


class Script:
    """What a server answers to one request after the other; the last stays."""

    def __init__(self) -> None:
        self.answers: list[int | str] = [OK]
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.objects: dict[str, bytes] = {}
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def next(self, request: BaseHTTPRequestHandler) -> int | str:
        with self._lock:
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.requests.append((f"{request.command} {request.path}", headers))
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _find(objects: dict[str, bytes], path: str) -> bytes | None:
    try:
        return objects[path]
    except KeyError:
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._goes_wrong():
            return
        self.script.objects[self.path] = body
        self._answer(OK, b"")

    def do_GET(self) -> None:
        if self._goes_wrong():
            return
        body = _find(self.script.objects, self.path)
        self._answer(OK if body is not None else 404, body or _ERROR % b"NoSuchKey")

    def log_message(self, *arguments: object) -> None:
        pass

    def _goes_wrong(self) -> bool:
        answer = self.script.next(self)
        if answer == HANG:
            self.script.go_on.wait(30)
        if answer == DROP:
            self.send_response(OK)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"the beginning")
        elif answer not in {HANG, OK}:
            self._answer(int(answer), _ERROR % b"Told")
            return True
        self.close_connection = answer != OK
        return answer != OK

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    script = Script()
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield script
    script.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def files(script: Script) -> S3Files:
    return S3Files()


def test_where_and_who_come_from_the_environment(script: Script, files: S3Files):
    files.write_whole("bucket/a", b"data")
    ((request, headers),) = script.requests
    assert request.startswith("PUT /bucket/a")
    assert "Credential=key/" in headers["authorization"]
    assert not [name for name in headers if name.startswith("x-amz-checksum")]


def test_checksums_are_sent_where_the_environment_asks_for_them(
    script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_SUPPORTED")
    S3Files().write_whole("bucket/a", b"data")
    assert [name for name in script.requests[0][1] if name.startswith("x-amz-checksum")]


def test_a_server_that_is_busy_for_a_moment_is_asked_again(script: Script, files: S3Files):
    script.answers = [503, 500, OK]
    files.write_whole("bucket/a", b"data")
    assert len(script.requests) == 3
    assert list(script.objects.values()) == [b"data"]


def test_a_server_that_stays_busy_is_an_error_after_a_few_tries(script: Script, files: S3Files):
    script.answers = [503]
    with pytest.raises(OSError, match="503 Told"):
        files.write_whole("bucket/a", b"data")
    assert len(script.requests) <= 6


@pytest.mark.usefixtures("script")
def test_an_address_that_is_none_is_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(StoreError, match="Invalid endpoint: localhost:9000"):
        CheckpointStore("s3://bucket/checkpoints").committed_steps()


def test_a_listing_that_lacks_what_it_must_hold_is_an_error_of_the_store(
    script: Script,
):
    entry = b"<Contents><Key>checkpoints/committed/a</Key></Contents>"
    listing = b"<ListBucketResult><Name>bucket</Name>" + entry + b"</ListBucketResult>"
    script.objects = defaultdict(lambda: listing)
    with pytest.raises(StoreError, match="KeyError"):
        CheckpointStore("s3://bucket/checkpoints").committed_steps()


@pytest.mark.parametrize("times", [1, 100])
def test_a_connection_that_breaks_off_half_way(script: Script, files: S3Files, times: int):
    script.objects["/bucket/a"] = b"data"
    script.answers = [*[DROP] * times, OK]
    if times == 1:
        assert files.read("bucket/a", 10) == b"data"
    else:
        with pytest.raises(OSError, match="ClientPayloadError"):
            files.read("bucket/a", 10)
        assert len(script.requests) <= 6


def test_a_server_that_is_silent_is_an_error_in_time(script: Script, monkeypatch):
    monkeypatch.setattr(bounded_calls, "_ANSWER_WITHIN_S", 1.0)
    script.answers = [HANG]
    files, began_at_s = S3Files(), time.monotonic()
    with pytest.raises(TimeoutError, match="no answer in time"):
        files.write_whole("bucket/a", b"data")
    assert time.monotonic() - began_at_s < 5


class TestCondition:
    def test_it_is_one_request_that_says_so(self, script: Script, files: S3Files):
        files.write_new("bucket/a", b"x" * (3 * s3_files.PART_BYTES))
        ((request, headers),) = script.requests
        assert request.startswith("PUT /bucket/a")
        assert headers["if-none-match"] == "*"

    def test_a_refusal_is_known_by_its_status(self, script: Script, files: S3Files):
        script.answers = [412]
        with pytest.raises(FileExistsError):
            files.write_new("bucket/a", b"data")

    def test_a_store_that_can_not_tell_yet_is_asked_again(self, script: Script, files: S3Files):
        script.answers = [409, 409, 412]
        with pytest.raises(FileExistsError):
            files.write_new("bucket/a", b"data")
        script.answers = [409]
        with pytest.raises(OSError, match="409 Told"):
            files.write_new("bucket/a", b"data")


def test_one_client_serves_all_threads_of_a_process(files: S3Files):
    clients: list[object] = []
    threads = [threading.Thread(target=lambda: clients.append(S3Files()._files)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(client) for client in clients} == {id(files._files)}


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "trainflow.checkpointing.s3_files")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StoreError, match=r"got 's3://bucket/run'.*pip install 'trainflow\[s3\]'"):
        CheckpointStore("s3://bucket/run")


@pytest.mark.parametrize("url", ["nonsense://bucket/run", "gs://bucket/run"])
def test_a_url_that_nothing_here_opens_is_refused(url: str):
    with pytest.raises(StoreError, match="expected a path or a URL that fsspec can open"):
        CheckpointStore(url)


def make_manifest_of(step: int, attempt: str = "a") -> Manifest:
    return replace(make_manifest(), step=step, attempt=attempt)


class TestMarker:
    """On stores that answer twice, or not at all."""

    @pytest.fixture
    def store(self) -> CheckpointStore:
        return CheckpointStore(f"memory://{time.monotonic_ns()}")

    def test_one_s_own_marker_is_no_conflict(self, store: CheckpointStore, monkeypatch):
        """The answer to the first request was lost, and the client asked again."""
        write = store._files.write_new

        def write_twice(path: str, data: bytes) -> None:
            write(path, data)
            write(path, data)

        store.commit(make_manifest())
        monkeypatch.setattr(store._files, "write_new", write_twice)
        store.commit(make_manifest_of(41))
        assert store.committed_steps() == [40, 41]

    def test_another_s_is(self, store: CheckpointStore):
        store.commit(make_manifest())
        with pytest.raises(CheckpointConflictError):
            store.commit(make_manifest_of(40, attempt="other"))

    def test_a_store_that_replaces_what_it_should_not_is_refused(
        self, store: CheckpointStore, monkeypatch
    ):
        monkeypatch.setattr(
            "trainflow.checkpointing.store_files.OtherFiles.write_new",
            lambda self, path, data: self.write_whole(path, data),
        )
        with pytest.raises(StoreError, match="replaces a file though told not to"):
            store.commit(make_manifest())
        assert store.committed_steps() == []


def test_a_server_that_ignores_ranges_fills_no_more_than_was_asked(files: S3Files, script: Script):
    """The test's own server is of the kind."""
    script.objects["/bucket/page.html"] = b"<html>longer than a chunk</html>"
    memory = bytearray(6)
    assert files.read_into("bucket/page.html", memoryview(memory)) == 6
    assert memory == b"<html>"
