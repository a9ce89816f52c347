"""The service's settings: where they come from, and what is refused."""

from pathlib import Path

import pytest

from trainflow.config.checking import SettingsError
from trainflow.service.settings import load_settings


def test_a_file_the_environment_and_options_lie_over_each_other(tmp_path: Path, home: Path):
    path = tmp_path / "service.yaml"
    path.write_text("http: {port: 8001, host: 127.0.0.2}\nreplicas: 3\n")
    env = {"TRAINFLOW_SERVICE__HTTP__PORT": "8002", "TRAINFLOW__HTTP__PORT": "1"}
    settings = load_settings(path, ["replicas=4"], env)
    assert (settings.http.host, settings.http.port, settings.replicas) == ("127.0.0.2", 8002, 4)


def test_the_file_in_the_home_is_read_if_none_is_named(home: Path):
    assert load_settings(env={}).replicas == 2
    (home / "service.yaml").write_text("replicas: 5\n")
    assert load_settings(env={}).replicas == 5


def test_the_database_may_come_from_its_own_variable(home: Path):
    env = {"TRAINFLOW_DATABASE_URL": "postgresql://a/b"}
    assert load_settings(env=env).history.url == "postgresql://a/b"
    env["TRAINFLOW_SERVICE__HISTORY__URL"] = "postgresql://c/d"
    assert load_settings(env=env).history.url == "postgresql://c/d"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_without_tokens_it_listens_to_this_machine(host: str, home: Path):
    options = ["authentication=off", f"http.host='{host}'"]
    assert not load_settings(overrides=options, env={}).needs_tokens


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["authentication=off", "http.host=0.0.0.0"], "others could run code"),
        (["authentication=off", "http.host=myhost"], "tokens, or a loopback address"),
        (["authentication=none"], "authentication: got 'none'"),
        (["http.port=0"], "http.port: got 0"),
        (["http.port=70000"], "http.port: got 70000"),
        (["http.prot=1"], "http.port"),
        (["http.certificate=/a"], "both or none"),
        (["roots=[relative]"], "an absolute path"),
        (["http.certificate=cert.pem", "http.key=/key.pem"], "http.certificate: got 'cert.pem'"),
        (["http.certificate=/cert.pem", "http.key=key.pem"], "http.key: got 'key.pem'"),
        (["limits.body_bytes=1"], "limits.body_bytes"),
        (["replicas=0"], "replicas: got 0"),
        (["schema_version=2"], "schema_version"),
    ],
)
def test_a_wrong_setting_is_refused(options: list[str], said: str, home: Path):
    with pytest.raises(SettingsError, match=said):
        load_settings(overrides=options, env={})


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path, home: Path):
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(tmp_path / "absent.yaml", env={})
