"""Where a command goes: every combination of options and variables."""

from pathlib import Path

import pytest

from trainflow.cli.places import (
    OWN_SERVER,
    ClusterPlace,
    ServicePlace,
    choose_place,
    find_service,
    read_token,
)
from trainflow.errors import ConfigError

URL = "https://jobs.example"


@pytest.mark.parametrize(
    ("server", "address", "env", "expected"),
    [
        (None, None, {}, ClusterPlace(None)),
        (None, None, {"RAY_ADDRESS": "a:1"}, ClusterPlace("a:1")),
        (None, None, {"RAY_ADDRESS": "a:1", "TRAINFLOW_ADDRESS": "b:1"}, ClusterPlace("b:1")),
        (None, None, {"TRAINFLOW_ADDRESS": ""}, ClusterPlace(None)),
        (None, "c:1", {"TRAINFLOW_SERVER": URL, "RAY_ADDRESS": "a:1"}, ClusterPlace("c:1")),
        (URL, None, {"TRAINFLOW_ADDRESS": "b:1"}, ServicePlace(URL, is_given=True)),
        (URL, None, {"TRAINFLOW_SERVER": "http://other"}, ServicePlace(URL, is_given=True)),
        (None, None, {"TRAINFLOW_SERVER": URL}, ServicePlace(URL, is_given=False)),
        (
            None,
            None,
            {"TRAINFLOW_SERVER": URL, "TRAINFLOW_ADDRESS": "b:1"},
            ServicePlace(URL, is_given=False),
        ),
    ],
)
def test_options_count_more_than_variables(
    server: str | None,
    address: str | None,
    env: dict[str, str],
    expected: ClusterPlace | ServicePlace,
):
    assert choose_place(server, address, env) == expected


def test_two_places_at_once_are_refused():
    with pytest.raises(ConfigError, match="one of them"):
        choose_place(URL, "a:1", {})


@pytest.mark.parametrize(
    ("server", "env", "source"),
    [
        ("jobs:8000", {}, "--server"),
        (None, {"TRAINFLOW_SERVER": "10.0.0.1"}, "TRAINFLOW_SERVER"),
        ("http://", {}, "--server"),
        ("http://:8000", {}, "--server"),
        ("http://jobs:8000 x", {}, "--server"),
        ("http://jobs:port", {}, "--server"),
        ("http://jobs:99999", {}, "--server"),
        ("http://jobs:0", {}, "--server"),
        ("http://[::1", {}, "--server"),
    ],
)
def test_what_is_no_url_is_refused(server: str | None, env: dict[str, str], source: str):
    with pytest.raises(ConfigError, match=f"{source}: got .* expected a URL"):
        find_service(server, env)


@pytest.mark.parametrize("url", [OWN_SERVER, "http://[::1]:8000", "https://jobs.example/under/"])
def test_what_is_a_url_is_taken(url: str):
    assert find_service(url, {}).url == url


def test_further_commands_are_told_the_service_only_if_the_environment_does_not():
    assert find_service(None, {"TRAINFLOW_SERVER": URL}).option() == ""
    assert find_service(URL, {"TRAINFLOW_SERVER": "http://other"}).option() == f" --server {URL}"
    assert find_service(None, {}).option() == f" --server {OWN_SERVER}"


def test_a_token_is_read_from_its_file(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("tf_secret\n")
    assert read_token({"TRAINFLOW_TOKEN_FILE": str(path)}) == "tf_secret"
    assert read_token({}) is None
    assert read_token({"TRAINFLOW_TOKEN_FILE": ""}) is None


@pytest.mark.parametrize("content", [None, b"", b"two words\n", b"\xff\xfe"])
def test_a_file_without_a_token_is_refused_and_its_content_is_not_told(
    content: bytes | None, tmp_path: Path
):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"TRAINFLOW_TOKEN_FILE: got .*token create") as refused:
        read_token({"TRAINFLOW_TOKEN_FILE": str(path)})
    assert "two words" not in str(refused.value)
