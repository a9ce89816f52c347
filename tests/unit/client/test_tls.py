"""A service that proves itself by a certificate that nobody else has signed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.client.test_clients import CountingClock
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import find_port
from trainflow.client import ServiceUnavailableError, TrainFlowClient
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.http_server import HttpServer
from trainflow.service.settings import HttpSettings, ServiceSettings


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of this machine's, which has signed itself; its key is in ``key.pem``."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl (apt-get install openssl)")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    command += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem"
    subprocess.run(
        [*command.split(), "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    return tmp_path / "cert.pem"


@pytest.fixture
def url(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a service listens that has it."""
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    key = certificate.with_name("key.pem")
    http = HttpSettings(port=find_port(), certificate=str(certificate), key=str(key))
    settings = ServiceSettings(authentication="off", http=http)
    with open_history() as history:
        server = HttpServer(create_app(settings, history, FakeCluster()), settings.http)
        with closing(server):
            yield f"https://127.0.0.1:{http.port}"


def test_a_client_trusts_the_certificates_that_ssl_cert_file_names(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    clock = CountingClock()
    with (
        TrainFlowClient(url, clock=clock) as client,
        pytest.raises(ServiceUnavailableError, match=r"(?i)certificate.* by SSL_CERT_FILE"),
    ):
        client.cluster()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TrainFlowClient(url, clock=clock) as client:
        assert client.cluster().total == {"CPU": 2.0}
