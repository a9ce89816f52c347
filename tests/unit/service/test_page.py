"""How the live page's files are served."""

import pytest

from tests.unit.service.conftest import OpenClient
from trainflow.service.page.files import PAGE_PATHS

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
async def test_a_file_needs_no_token_and_says_what_a_browser_may_do(
    path: str, open_client: OpenClient
):
    async with open_client(authentication="tokens") as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.content
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_files_are_of_their_kinds(open_client: OpenClient):
    kinds = {
        "/": "text/html; charset=utf-8",
        "/page/main.js": "text/javascript; charset=utf-8",
        "/page/style.css": "text/css; charset=utf-8",
        "/page/icon.svg": "image/svg+xml",
    }
    async with open_client() as client:
        for path, kind in kinds.items():
            assert (await client.get(path)).headers["content-type"] == kind


async def test_a_file_that_a_browser_has_is_not_sent_again(open_client: OpenClient):
    async with open_client() as client:
        first = await client.get("/page/main.js")
        known = {"If-None-Match": first.headers["etag"]}
        again = await client.get("/page/main.js", headers=known)
        other = await client.get("/page/chart.js", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/nothing.js", "/page/index.html", "/page/..%2ffiles.py", "/page/%2e%2e/x"],
)
async def test_nothing_else_is_served(path: str, open_client: OpenClient):
    async with open_client() as client:
        assert (await client.get(path)).status_code == 404
    async with open_client(authentication="tokens") as client:
        assert (await client.get(path)).status_code == 401


async def test_the_page_is_read_and_not_written(open_client: OpenClient):
    async with open_client() as client:
        answer = await client.post("/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_the_page_is_refused_to_a_name_that_is_not_the_services(open_client: OpenClient):
    async with open_client() as client:
        answer = await client.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 421


async def test_the_page_is_no_part_of_the_description(open_client: OpenClient):
    async with open_client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert not PAGE_PATHS & paths.keys()
