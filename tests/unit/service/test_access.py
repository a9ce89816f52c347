"""Who is answered: by token, host, origin, rate and size."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.service.app import create_app
from trainflow.service.history.history import History, open_history
from trainflow.service.history.records import Scope
from trainflow.service.host_checks import check_host
from trainflow.service.problems import ProblemError
from trainflow.service.settings import ServiceSettings

pytestmark = pytest.mark.anyio

READ, SUBMIT = frozenset({Scope.READ}), frozenset({Scope.SUBMIT})


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def kind_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["type"].rpartition(":")[2]


async def test_without_a_token_only_its_health_is_told(open_client: OpenClient):
    async with open_client(authentication="tokens") as client:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/jobs", "/v1/cluster", "/v1/token", "/nowhere", "/healthz/"):
            answer = await client.get(path)
            assert (answer.status_code, kind_of(answer)) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic x", "Bearer tf_forged", "Bearer \u00e9", "tf_000000000000_x"],
)
async def test_what_is_no_token_is_refused(authorization: str, open_client: OpenClient):
    async with open_client(authentication="tokens") as client:
        headers = {"Authorization": authorization.encode("latin-1")}
        answer = await client.get("/v1/jobs", headers=headers)
    assert (answer.status_code, kind_of(answer)) == (401, "unauthenticated")


async def test_a_token_counts_for_its_scopes_until_it_ends(
    open_client: OpenClient, history: History, clock: FakeClock, job_config: dict[str, Any]
):
    reader = history.tokens.create("r", READ, expires_at_s=clock.now_s + 60)
    submitter = history.tokens.create("s", SUBMIT)
    body = {"config": job_config}
    async with open_client(authentication="tokens") as client:
        reading, submitting = bearer(reader.secret), bearer(submitter.secret)
        assert (await client.get("/v1/jobs", headers=reading)).status_code == 200
        assert (await client.get("/v1/token", headers=reading)).json()["scopes"] == ["read"]
        refused = await client.post("/v1/jobs", json=body, headers=reading)
        assert (refused.status_code, kind_of(refused)) == (403, "forbidden")
        assert (await client.get("/v1/jobs", headers=submitting)).status_code == 403
        made = await client.post("/v1/jobs", json=body, headers=submitting)
        assert made.status_code == 201

        clock.now_s += 61
        assert (await client.get("/v1/jobs", headers=reading)).status_code == 401
        history.tokens.revoke(submitter.token.token_id)
        assert (await client.post("/v1/jobs", json=body, headers=submitting)).status_code == 401


async def test_a_token_that_was_altered_is_refused(open_client: OpenClient, history: History):
    secret = history.tokens.create("r", READ).secret
    forged = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    async with open_client(authentication="tokens") as client:
        assert (await client.get("/v1/jobs", headers=bearer(forged))).status_code == 401


async def test_a_key_of_one_token_is_none_of_anothers(
    open_client: OpenClient, history: History, job_config: dict[str, Any]
):
    secrets = [history.tokens.create(name, SUBMIT).secret for name in "ab"]
    async with open_client(authentication="tokens") as client:
        made = [
            await client.post(
                "/v1/jobs",
                json={"config": job_config},
                headers=bearer(secret) | {"Idempotency-Key": "k"},
            )
            for secret in secrets
        ]
    assert [answer.status_code for answer in made] == [201, 201]


async def test_refused_tokens_are_limited_by_address_and_new_ones_wait_too(
    open_client: OpenClient, history: History, clock: FakeClock
):
    secret = history.tokens.create("r", READ).secret
    limits = {"refusals_per_minute": 3}
    async with open_client(authentication="tokens", limits=limits) as client:
        for _ in range(3):
            assert (await client.get("/v1/jobs", headers=bearer("x"))).status_code == 401
        answer = await client.get("/v1/jobs", headers=bearer(secret))
        assert (answer.status_code, kind_of(answer)) == (429, "too-many-requests")
        clock.now_s += float(answer.headers["retry-after"])
        assert (await client.get("/v1/jobs", headers=bearer(secret))).status_code == 200


async def test_who_was_let_in_is_not_shut_out_by_others_of_the_same_address(
    open_client: OpenClient, history: History
):
    made = history.tokens.create("r", READ)
    limits = {"refusals_per_minute": 3}
    async with open_client(authentication="tokens", limits=limits) as client:

        async def ask(secret: str) -> int:
            return (await client.get("/v1/jobs", headers=bearer(secret))).status_code

        assert await ask(made.secret) == 200
        assert [await ask("x") for _ in range(4)] == [401, 401, 401, 429]
        assert await ask(made.secret) == 200
        assert (await client.post("/v1/jobs", headers=bearer(made.secret))).status_code == 403
        history.tokens.revoke(made.token.token_id)
        assert [await ask(made.secret) for _ in range(2)] == [401, 429]


async def test_requests_are_limited_by_token(
    open_client: OpenClient, history: History, clock: FakeClock
):
    first, second = (bearer(history.tokens.create(name, READ).secret) for name in "ab")
    limits = {"requests_per_s": 1.0, "burst": 2}
    async with open_client(authentication="tokens", limits=limits) as client:
        answers = [await client.get("/v1/jobs", headers=first) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].headers["retry-after"] == "1"
        assert (await client.get("/v1/jobs", headers=second)).status_code == 200
        clock.now_s += 1
        assert (await client.get("/v1/jobs", headers=first)).status_code == 200


async def test_requests_that_a_token_does_not_allow_are_limited_too(
    open_client: OpenClient, history: History
):
    made = bearer(history.tokens.create("r", READ).secret)
    limits = {"requests_per_s": 1.0, "burst": 2}
    async with open_client(authentication="tokens", limits=limits) as client:
        answers = [await client.post("/v1/jobs", headers=made) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [403, 403, 429]
        assert (await client.get("/v1/jobs", headers=made)).status_code == 429


async def test_requests_without_a_token_are_limited_by_address_and_shut_nobody_out(
    open_client: OpenClient, history: History, clock: FakeClock
):
    made = bearer(history.tokens.create("r", READ).secret)
    async with open_client(authentication="tokens", limits={"refusals_per_minute": 2}) as client:
        given = [{}, {"Authorization": "Basic x"}, {}]
        answers = [await client.get("/v1/jobs", headers=headers) for headers in given]
        assert [answer.status_code for answer in answers] == [401, 401, 429]
        assert "requests without a token: got too many" in answers[-1].json()["detail"]
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/jobs", headers=made)).status_code == 200
        clock.now_s += float(answers[-1].headers["retry-after"])
        assert (await client.get("/v1/jobs")).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "127.0.0.1",
        "[::1]:8000",
        "10.0.0.7:80",
        "train.lan",
        "TRAIN.lan",
    ],
)
async def test_a_name_of_the_service_is_answered(host: str, open_client: OpenClient):
    async with open_client(http={"allowed_hosts": ["Train.lan"]}) as client:
        assert (await client.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "a@localhost", "x:y", ""]
)
async def test_another_name_is_refused(host: str, open_client: OpenClient):
    async with open_client() as client:
        answer = await client.get("/healthz", headers={"Host": host})
    assert (answer.status_code, kind_of(answer)) == (421, "host-refused")


def test_a_request_without_a_name_is_told_so():
    with pytest.raises(ProblemError, match="Host: got none, expected localhost"):
        check_host(None, [])


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://page.lan", 200),
        ("http://evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
    ],
)
async def test_pages_of_other_origins_may_not_ask(
    origin: str, status: int, open_client: OpenClient
):
    async with open_client(http={"allowed_origins": ["https://page.lan"]}) as client:
        answer = await client.get("/v1/jobs", headers={"Origin": origin})
    assert answer.status_code == status
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == ("https://page.lan" if origin == "https://page.lan" else None)
    assert "Log-Offset" in answer.headers["access-control-expose-headers"]


async def test_without_tokens_only_this_machine_is_answered(
    history: History, cluster: FakeCluster, clock: FakeClock
):
    app = create_app(ServiceSettings(authentication="off"), history, cluster, clock)
    for peer, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 403)):
        transport = httpx.ASGITransport(app, client=(peer, 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/v1/jobs")).status_code == status


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"])
async def test_without_tokens_what_a_proxy_passes_on_is_refused(
    header: str, open_client: OpenClient, history: History
):
    passed_on = {header: "127.0.0.1"}
    async with open_client() as client:
        for path in ("/v1/jobs", "/healthz", "/"):
            answer = await client.get(path, headers=passed_on)
            assert (answer.status_code, kind_of(answer)) == (403, "not-local")
        assert f"the header {header}, which a proxy" in answer.json()["detail"]
        assert "set authentication to tokens" in answer.json()["detail"]
    async with open_client(authentication="tokens") as client:
        headers = passed_on | bearer(history.tokens.create("r", READ).secret)
        assert (await client.get("/v1/jobs", headers=headers)).status_code == 200


async def test_a_body_that_is_announced_as_too_large_is_not_read(open_client: OpenClient):
    async def send() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    async with open_client() as client:
        headers = {"Content-Length": str(100 * 1024**2), "Content-Type": "application/json"}
        answer = await client.post("/v1/jobs", content=send(), headers=headers)
    assert (answer.status_code, kind_of(answer)) == (413, "body-too-large")


async def test_a_body_of_a_hundred_megabytes_is_read_as_far_as_allowed(open_client: OpenClient):
    num_sent = 0

    async def send() -> AsyncIterator[bytes]:
        nonlocal num_sent
        for _ in range(1600):
            num_sent += 65536
            yield b" " * 65536

    async with open_client() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/v1/jobs", content=send(), headers=headers)
    assert (answer.status_code, kind_of(answer)) == (413, "body-too-large")
    assert num_sent <= 2 * 1024**2


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "9" * 5000])
async def test_a_length_that_is_none_is_refused(length: str, open_client: OpenClient):
    async with open_client() as client:
        headers = {"Content-Length": length, "Content-Type": "application/json"}
        answer = await client.post("/v1/jobs", content=b"{}", headers=headers)
    assert answer.status_code == 413


@pytest.fixture
def lost_history(tmp_path: Path) -> Iterator[History]:
    """A history whose database is gone."""
    path = tmp_path / "gone" / "history.db"
    path.parent.mkdir()
    with open_history(f"sqlite:///{path}") as history:
        history.close()
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
        yield history


async def test_a_database_that_is_gone_is_told(lost_history: History, cluster: FakeCluster):
    app = create_app(ServiceSettings(authentication="off"), lost_history, cluster)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/healthz")).status_code == 200
        for path in ("/readyz", "/v1/jobs", "/v1/jobs/some-job"):
            answer = await client.get(path)
            assert (answer.status_code, kind_of(answer)) == (503, "history-unavailable")
            assert "retry-after" in answer.headers


async def test_a_failure_of_the_service_tells_nothing_of_its_inside(
    open_client: OpenClient, cluster: FakeCluster
):
    cluster.error = KeyError("secret detail")
    async with open_client() as client:
        answer = await client.get("/v1/cluster")
    assert (answer.status_code, kind_of(answer)) == (500, "internal")
    assert answer.headers["connection"] == "close"  # as it is
    assert "secret detail" not in answer.text


@pytest.mark.parametrize("path", ["/v1/jobs/", "/healthz/", "/v1/jobs/a-aaaaaa/"])
async def test_an_address_is_not_another_one_with_a_slash(open_client: OpenClient, path: str):
    async with open_client() as client:
        answers = [await client.get(path), await client.post(path)]
    assert [(answer.status_code, kind_of(answer)) for answer in answers] == [(404, "not-found")] * 2


async def test_an_address_that_is_none_is_told_as_it_was_asked(open_client: OpenClient):
    async with open_client() as client:
        answer = await client.get(f"{str(client.base_url).rstrip('/')}//v1/jobs")
    assert (answer.status_code, kind_of(answer)) == (404, "not-found")
    assert "got GET //v1/jobs, expected" in answer.json()["detail"]


async def test_a_method_that_is_none_here_is_told_with_those_that_are(open_client: OpenClient):
    async with open_client() as client:
        answer = await client.put("/v1/jobs")
    assert (answer.status_code, kind_of(answer)) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
